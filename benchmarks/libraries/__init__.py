"""Cost of each library in running agents, against its replacement: ``python -m benchmarks.libraries``."""
