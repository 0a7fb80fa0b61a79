"""Attacks and faults: what tenants, nodes and networks can do, and the damage that must not follow."""
