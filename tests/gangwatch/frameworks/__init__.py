"""Training programs as users of each framework write them: nothing of gangwatch is in them.

``ranks.py`` starts their ranks; tests/gangwatch/test_frameworks.py says what each step must report.
"""
