"""Telemetry of the whole cluster: frames folded into arrays for the detectors.

Start at ``fleet.py``; ``membership.py`` drops what a node may not report.
"""
