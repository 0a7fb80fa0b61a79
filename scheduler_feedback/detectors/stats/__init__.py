"""Statistics that several detectors use: medians, correlation, periodicity, log odds."""
