"""Collect, on one node: sources read the machine, collectors make samples of it, the node makes frames of those."""

PART_OF = "gangwatch"
