"""A synthesised /sys and /proc of a training node. Everything in it is made up; nothing was recorded on a machine."""
