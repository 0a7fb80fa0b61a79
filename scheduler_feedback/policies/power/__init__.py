"""Power budget of the cluster: a power limit for the GPUs of each running gang.

``account`` adds up what all GPUs may draw. ``admission`` decides whether a gang may start within the budget.
``allocation`` chooses the limits, ``limits`` applies them in the cycle, ``power_speeds`` predicts the speed at a limit,
and ``own_limits`` recognises verdicts that only show the scheduler's own limit.
"""
