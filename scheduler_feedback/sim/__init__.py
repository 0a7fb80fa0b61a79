"""Simulation: the production cycle with other edges: a virtual clock, jobs from a trace, faults from a timetable."""
