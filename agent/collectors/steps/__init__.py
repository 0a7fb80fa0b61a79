"""Collectors of training steps that ranks report.

Start at ``steps.py``. ``step_columns.py`` decides which ranks have series.
"""
