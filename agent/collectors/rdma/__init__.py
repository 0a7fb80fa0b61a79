"""Collectors of RDMA devices (InfiniBand and RoCE).

Start at ``rdma.py``. ``rdma_counters.py`` translates each driver's counter names into the catalogue's.
"""
