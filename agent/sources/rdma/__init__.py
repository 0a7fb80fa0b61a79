"""Access to RDMA devices and network drivers: sysfs, RDMA netlink, ethtool, and network namespaces."""
