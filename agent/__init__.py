"""The node agent: sources read the machine, collectors make samples, and the node makes frames of the samples."""

PART_OF = "gangwatch"
