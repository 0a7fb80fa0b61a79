"""Speed of our scheduler with 40,000 GPUs, published figures of other schedulers, and a real Slurm on this machine."""
