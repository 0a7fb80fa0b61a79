"""Fake /sys and /proc of a training node. All values are invented; nothing was recorded on a machine."""
