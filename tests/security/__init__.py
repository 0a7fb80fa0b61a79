"""Attacks and faults: what a tenant, a node or a network may do, and what must not come of it."""
