"""What the agent costs beside its peers, on the same fake hardware in the same run: ``python -m benchmarks.agent``."""
