"""Attacks by tenants, nodes and networks, and faults; and the damage that they must not cause."""
