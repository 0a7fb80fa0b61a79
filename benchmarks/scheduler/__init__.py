"""Speed of the scheduler: ours at 40,000 GPUs, published figures of others, and a real Slurm on this machine."""
