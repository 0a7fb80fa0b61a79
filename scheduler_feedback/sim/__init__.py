"""Simulation: the production cycle with a virtual clock, jobs from a trace, and scheduled faults."""
