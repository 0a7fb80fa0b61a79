"""Simulated world with realistic telemetry: training jobs on machines and a fabric that can fail.

It models the hardware independently of the detectors, and imports neither detectors nor policies. Start at
``course.py``, the steps of one job over time. Bottom up:

    arrays       types of arrays
    physics/     hardware, power, collectives, pipeline schedule, and the timing of one step
    plan         a job: its division over ranks, and the work of each rank
    layouts      plans of jobs with other layouts: interleaved, sharded, local SGD, one stage a node
    clos_fabric  leaves, spines, uplinks, flows on them, queues, marks and pauses
    condition    state of the devices during a step; faults change it
    weather      random variation of healthy jobs
    traits       properties that only some jobs have: unequal GPUs, drift, wrong clocks, restarts, habits
    variation    differences between the GPUs and hosts of such a job
    fault        faults with their size and shape over time: the ground truth
    scene        the job, ranks and steps to which an effect applies
    effect       effects of each fault on devices and counters
    rank_work    effects of healthy work of single ranks
    block        steps of a job, as the outputs read them
    course       steps of a job over time
    outputs/     device counters, and telemetry as arrays or as frames of agents
    processes/   gangs without accelerators, in more detail than steps: stops, queues, disks
"""
