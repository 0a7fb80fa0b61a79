"""Attacks on the running product, each with what it cost others: ``python -m benchmarks.attack --json``."""
