"""Access to /sys: small readers, block devices, and PCI devices."""
