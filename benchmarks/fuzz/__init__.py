"""Malformed inputs for every parser that reads what another party wrote: ``python -m benchmarks.fuzz --json``."""
