"""Studies beside the simulation of jobs: shares of GPUs, MIG instances, and power limits."""
