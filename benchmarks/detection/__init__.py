"""How well ours and the published rules find what is wrong with a training job: ``python -m benchmarks.detection``.

Jobs run in the simulated world (scheduler_feedback/sim/world), whose physics shares no rule with any of the methods;
all methods hear the same telemetry in the same run.
__main__.py says what is run, score.py what counts as right.
"""
