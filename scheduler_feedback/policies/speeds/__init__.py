"""Learnt speeds: how fast jobs of a class run, by GPU type, number of ranks and placement level.

``speed_model`` is the statistical model of one class, and ``learnt_speeds`` keeps the measurements of the state.
"""
