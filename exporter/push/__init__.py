"""Pushing frames to receivers.

Start at ``push.py``, the bounded queue. ``sinks.py`` lists the kinds of receivers.
"""
