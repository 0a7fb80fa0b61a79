"""Live pages of the controller, rendered as HTML on the server.

Each page is complete without a script. A stream of server-sent events then sends every part that has changed
(pages.py). views.py builds documents of limited size from the state. page_renderer.py renders the parts from
them, and `gangwatch top` its screen. The pages are read-only: every change is a request to the API by a logged-in user.
"""
