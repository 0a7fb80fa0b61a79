"""Simulated world with realistic telemetry: training jobs on machines and a fabric that can fail.

It models the hardware independently of the detectors, and imports neither detectors nor policies. Start at
``course.py``, the steps of one job over time. Bottom up:

    arrays       types of arrays
    physics/     hardware, power, collectives, pipeline schedule, and the timing of one step
    plan         a job: its division over ranks, and the work of each rank
    clos_fabric  leaves, spines, uplinks, flows on them, queues, marks and pauses
    condition    state of the devices during a step; faults change it
    weather      random variation of healthy jobs
    fault        faults with their size and shape over time: the ground truth
    effect       effects of each fault on devices and counters
    course       steps of a job over time
    outputs/     device counters, and telemetry as arrays or as frames of agents
    processes/   gangs without accelerators, in more detail than steps: stops, queues, disks
"""
