"""Cost of the agent and of comparable exporters on the same fake hardware: ``python -m benchmarks.agent``."""
