"""Speeds of simulated jobs: measured ones, beside others on the same slots or uplinks, and services with requests."""
