"""MIG instances: which GPU is divided, and where the instance of each rank starts (`Policy.mig`)."""
