"""Malformed inputs for every parser of external data: ``python -m benchmarks.fuzz --json``."""
