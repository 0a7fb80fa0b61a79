"""Feedback into a real Slurm: cost of watching, value of acting: ``python -m benchmarks.slurm --json``."""
