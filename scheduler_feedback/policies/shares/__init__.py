"""Placement of requests that may ask for a share of one GPU.

``gpu_room`` has requests and the free resources of nodes, ``fragmentation`` measures how much of the free GPUs typical
requests cannot use, ``placement_rules`` has best fit and the minimisation of fragmentation, and ``share_index`` chooses
a node for each request. Start reading there. No backend starts shares yet: simulations call this code.
"""
