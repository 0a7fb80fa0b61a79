"""Training programs as users of each framework write them: nothing of gangwatch is in them.

``ranks.py`` starts them; tests/gangwatch/test_frameworks.py checks their reports.
"""
