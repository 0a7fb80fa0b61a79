"""All that touches the machine: files under /proc and /sys, the driver's library, rings. Roots are parameters."""
