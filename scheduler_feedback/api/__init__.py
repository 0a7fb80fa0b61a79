"""The HTTP API and the web page of the controller.

Start at ``app.py``. ``access`` says who asks, ``reading`` answers from snapshots, ``web`` renders the page.
"""
