"""Simulated world with realistic telemetry: training jobs on machines and a fabric that can fail.

It models the hardware, independently of the detectors: it imports neither detectors nor policies. Bottom up:

    arrays       types of arrays
    hardware     capabilities of a GPU, a node and a NIC
    power        clock under power and temperature limits
    collective   duration of rings, trees and all-to-alls
    pipeline     schedule of one forward and one backward over pipeline stages
    plan         a job: its division over ranks, and the work of each rank
    weather      random variation of healthy jobs
    fabric       leaves, spines, uplinks, flows on them, queues, marks and pauses
    condition    state of the devices during a step; faults change it
    fault        faults with their size and shape over time: the ground truth
    step         computing, waiting and synchronisation in one step
    effect       effects of each fault on devices and counters
    course       steps of a job over time
    counters     counters of the devices
    telemetry    telemetry for a detector: with missing, late and repeated samples, and counter resets
    published    metric names of the frames
    frames       the same telemetry as frames of agents
    processes    gangs without accelerators, in more detail than steps: stops, queues, disks
    load         delays of such gangs
"""
