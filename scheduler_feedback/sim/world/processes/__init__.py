"""Gangs of ordinary processes, in more detail than steps: stops, processor queues, disks.

Start at ``gang.py``; ``delays.py`` has the delays of such gangs.
"""
