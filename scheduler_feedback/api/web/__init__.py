"""Live pages of the controller, rendered as HTML on the server.

Each page is complete without a script. A stream of server-sent events then sends every part that has changed
(pages.py). views.py builds bounded documents of the state, from which page_renderer.py makes the parts and `gangwatch
top` its screen. The pages are read-only: every change is a request to the API by a logged-in user.
"""
