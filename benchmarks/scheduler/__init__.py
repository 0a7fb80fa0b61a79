"""The scheduler's speed: ours at 40,000 GPUs, what others published, and a real Slurm on this machine."""
