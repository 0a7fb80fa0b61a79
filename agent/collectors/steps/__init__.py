"""Collectors of training steps that ranks report.

Start at ``step_collector.py``. ``step_columns.py`` decides which ranks have series.
"""
