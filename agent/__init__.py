"""The node agent: sources read the machine, collectors make samples, and the node makes frames of the samples.

Start at ``node.py``; ``runner.py`` runs one collector, ``assembly.py`` makes a frame of the newest samples.
``sources/`` reads the machine, ``collectors/`` has one module per family of metrics, ``schema/`` the shared types.
"""

PART_OF = "gangwatch"
