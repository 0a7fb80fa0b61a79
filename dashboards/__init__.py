"""What people see: Grafana dashboards, recording rules and alerts, as code whose names are the catalogue's.

`<folder>/<name>.dashboard.py` exposes `dashboard`, a Board; `gangwatch dashboards build` writes all of them and the
rules. Of gangwatch it imports the catalogue alone; what it builds with is Grafana's grafana-foundation-sdk.

    expressions   every name in an expression is one that is published or recorded, or the build fails
    board         a dashboard of ours: variables, links and annotations that all of them have
    panels        the few kinds of panels that they are made of
    loading       finds the dashboards
    rules         recording rules and alerts, and their files
    provisioning  Grafana's, Prometheus's and Alertmanager's configuration for one machine
"""

PART_OF = "gangwatch"
