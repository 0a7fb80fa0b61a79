"""Prometheus text and OpenMetrics from frames.

Start at ``exposition.py``. ``profiles.py`` selects the families, ``compatibility.py`` adds other exporters' names.
"""
