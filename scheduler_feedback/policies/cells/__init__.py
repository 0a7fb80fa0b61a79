"""Cells: parts of the cluster (GPU, pair, quad, node, rack) that queues are guaranteed to have, as in HiveD."""
