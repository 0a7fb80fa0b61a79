"""Feedback into a real Slurm: what watching costs it, what acting is worth: ``python -m benchmarks.slurm --json``."""
