"""The configuration file: sections, checks, and the active configuration.

Start at ``config_file.py``; a new key is a field in ``sections.py``. ``node_plan.py`` divides this machine into nodes,
``in_force.py`` has the configuration of a running controller, ``notices.py`` warns of ineffective settings.
"""
