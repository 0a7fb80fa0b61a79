"""Collectors of the host: processors, memory, disks, network interfaces, PCIe, the kernel log, and rank processes.

Start at ``host.py``. ``owners.py`` publishes which pod, job and rank uses which device. ``kubelet_pods.py`` lists the
pods.
"""
