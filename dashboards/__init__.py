"""Source code of the Grafana dashboards, recording rules and alerts.

Each `<folder>/<name>.dashboard.py` defines `dashboard`, an object of class Board. `gangwatch dashboards build` writes
all of them. This package imports only gangwatch's metric catalogue and Grafana's grafana-foundation-sdk.

    expressions   checks that every metric in an expression is published or recorded; otherwise the build fails
    board         the dashboard class: common variables, links and annotations
    panels        the kinds of panels
    loading       finds the dashboards
    rules         recording rules and alerts, and their files
    provisioning  configuration of Grafana, Prometheus and Alertmanager for one machine
"""

PART_OF = "gangwatch"
