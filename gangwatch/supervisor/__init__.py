"""The process that ``gangwatch up`` starts. It runs the controller and the agents, and restarts them.

Start at ``supervisor.py``.
"""
