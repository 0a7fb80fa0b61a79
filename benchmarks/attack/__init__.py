"""Attacks on a real controller and agent, measured by their effect on other clients.

Each module ``attacks_NAME.py`` lists its attacks in a tuple ``ATTACKS`` of (name, callable). A callable runs the
attack and returns a dict: name, survived, rss_growth_mib, p99_ms_of_others (latency of other clients' requests),
p99_ms_of_others_quiet (the same without the attack), lost, wrong_actions.
"""
