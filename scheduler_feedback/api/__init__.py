"""The controller's HTTP API and its web pages.

Start at ``app.py``. ``access`` authenticates requests, ``endpoints`` holds the routes of /api, ``reading`` answers from
snapshots, ``web`` renders pages.
"""
