"""Cost of monitoring a real Slurm, and time saved by moving its jobs: ``python -m benchmarks.slurm --json``."""
