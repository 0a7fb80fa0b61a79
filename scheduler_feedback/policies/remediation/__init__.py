"""What to do about a slow or hanging gang: move it, restart it, or wait.

Start at ``migration.py``; ``mitigation_options.py`` weighs the options.
"""
