"""GPU types: which type a pending job uses, and when it waits for a faster one than is free.

``type_backlog`` estimates when slots of each type become free, and ``faster_types`` decides.
"""
