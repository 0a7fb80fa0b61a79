"""The detector of slow network links that have no counters of errors."""
