"""Second generator of step traces: a queue model of a training step, judged by `gangwatch detect`.

It was written from the documentation of the file format. It shares no code with `benchmarks.traces` or the simulator.
"""
