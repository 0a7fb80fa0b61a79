"""Data types and their invariants. Pure: no clock, no socket, no file."""
