"""Statistics that several detectors use: medians, correlation, periodicity, log odds.

Pure functions on arrays; each module is named after its statistic.
"""
