"""The configuration file: sections, checks, and the active configuration.

Start at ``config_file.py``; a new key is a field in ``sections.py``.
"""
