"""Outputs of the simulated world: its jobs' telemetry, in two forms.

Start at ``array_output.py``: arrays for detectors, fast, for large worlds. ``frame_output.py`` sends the same telemetry
as frames of agents, with the metric names of ``published_names.py``. ``device_counters.py`` and ``node_events.py``
compute the counters and events for both forms.
"""
