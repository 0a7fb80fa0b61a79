"""Statistics that several detectors use: medians, correlation, periodicity, log odds.

The modules contain pure functions on arrays. Each module is named after its statistic.
"""
