"""Data locality: which nodes have a job's dataset in their caches, and placement on them."""
