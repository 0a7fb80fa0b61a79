"""GPU types: which type a pending job uses, and when it waits for a faster one than is free.

``type_backlog`` estimates when slots of each type become free, ``faster_types`` decides, and ``type_moves`` moves
running gangs to idle slots of a faster type.
"""
