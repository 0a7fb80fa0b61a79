"""Cost of the agent and of comparable exporters on the same fake GPUs and NICs: ``python -m benchmarks.agent``."""
