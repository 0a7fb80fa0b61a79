"""Grafana dashboards, recording rules and alerts as code.

`<folder>/<name>.dashboard.py` exposes `dashboard`, a Board. `gangwatch dashboards build` writes all of them.
This package imports only the metric catalogue from gangwatch, and Grafana's grafana-foundation-sdk.

    expressions   checks that every metric in an expression is published or recorded; otherwise the build fails
    board         the dashboard class: common variables, links and annotations
    panels        the kinds of panels
    loading       finds the dashboards
    rules         recording rules and alerts, and their files
    provisioning  configuration of Grafana, Prometheus and Alertmanager for one machine
"""

PART_OF = "gangwatch"
