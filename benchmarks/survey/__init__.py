"""The mechanisms of surveyed GPU cluster schedulers: published results, our reproduction, and our scheduler.

``__main__`` runs the rows and prints them. ``row`` has the format of a row, ``replays`` the rows that the simulator of
the product computes, ``shares`` those of placement with shares of GPUs, ``gavel`` those of linear programs over
heterogeneous throughputs, ``gavel_rounds`` that of their rounds, ``allox`` that of a matching of jobs to GPU types,
``virtual_clusters`` those of tenants with guaranteed shares, ``failures`` that of nodes that fail, ``locality`` that of
waits for one node, ``distance`` that of waits by the learnt cost of distance, ``elastic`` those of sizes by learnt
speeds, and ``missing`` the mechanisms that the product does not have, each with the reason. ``learning`` measures the
error of learnt speeds.
"""
