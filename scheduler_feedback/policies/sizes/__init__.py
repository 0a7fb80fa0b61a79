"""Joint choice of the numbers of ranks and the GPU types of all elastic gangs, by their learnt speeds.

``options`` lists what a job may run with. ``value`` says what each option is worth, by ``Policy.sizes``. ``choosing``
picks one option for each job, so that the sum of the values is large and the slots suffice. ``reallocation`` resizes
gangs and starts pending jobs accordingly.
"""
