"""The controller's HTTP API and its web pages.

Start at ``app.py``. ``access`` authenticates requests, ``reading`` answers them from snapshots, ``web`` renders pages.
"""
