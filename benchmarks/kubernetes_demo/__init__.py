"""`make demo-kubernetes`: the story of `gangwatch demo` with real kubelets, containers and volumes on one machine.

Start at ``__main__.py``. ``conductor.py`` has the sequence, ``manifests.py`` the objects, ``cpu_quota.py`` the fault,
``observer.py`` reads pods and steps for the report, which ``gangwatch/demo/account.py`` computes.
"""
