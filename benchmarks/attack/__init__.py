"""Attacks on a real controller and agent, measured by their effect on other clients.

A module ``attacks_NAME.py`` lists its attacks in a module-level ``ATTACKS``, a tuple of (name, callable). A callable
returns a dict: name, survived, rss_growth_mib, p99_ms_of_others, p99_ms_of_others_quiet, lost, wrong_actions.
"""
