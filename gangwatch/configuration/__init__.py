"""The configuration file: sections, checks, and what is in force.

Start at ``config_file.py``; a new key is a field in ``sections.py``.
"""
