"""Telemetry of the whole cluster: frames merged into arrays for the detectors.

Start with ``fleet.py``. ``membership.py`` drops records and series that a node may not report.
"""
