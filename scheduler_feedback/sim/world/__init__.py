"""The world at telemetry fidelity: jobs that compute, meet and wait on machines and a fabric that can fail.

Built from what the hardware does, and from nothing of what a detector looks for: it imports neither detectors nor
policies. Bottom up:

    arrays       names for arrays
    hardware     what a GPU, a node and a NIC can do
    power        what clock they are left with by power and heat
    collective   how long a ring, a tree, an all-to-all takes
    pipeline     one forward, one backward: when each stage is done
    plan         a job: how it is cut over ranks, and how much each rank has to do
    weather      what varies without being anybody's fault
    fabric       leaves, spines, uplinks, flows on them, queues, marks and pauses
    condition    the state that devices are in while a step runs; faults change it
    fault        what breaks, how hard, in what shape over time, and the truth about it
    step         who computes, waits and meets in one step
    effect       what each fault does to the devices, and which counters tell of it
    course       a job's steps through time under conditions
    counters     what the devices' counters show of it
    telemetry    what reaches a judge: samples that are missing, late, doubled or begun anew
    published    the names under which frames tell it
    frames       the same as frames of agents
    processes    gangs without accelerators, below the grain of a step: stops, queues, disks
    load         what befalls such gangs
"""
