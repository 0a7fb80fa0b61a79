"""Access to the machine: files under /proc and /sys, the driver's library, rings. Root paths are parameters."""
