"""Policies for slow and hanging gangs: move, restart, or wait.

Start at ``migration.py``; ``mitigation_options.py`` weighs the options.
"""
