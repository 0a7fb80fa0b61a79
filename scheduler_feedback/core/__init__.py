"""Data and its invariants: cluster, job, fleet, verdict, plan, actions, events. Pure: no clock, no socket, no file."""
