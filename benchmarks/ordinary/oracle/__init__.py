"""The oracle: invariants of an ordinary day, judged from outside.

`facts.py` contains its inputs: the process table, the jobs' own records, the users' requests, and gangwatch's output on
its API, command line and page. Each other module is one family of checks: a function that takes the facts known so far
and yields doubts. `oracle.py` turns doubts into failures: some at once, most only after they have lasted longer than a
busy machine explains.

Nothing in here imports gangwatch, its packages, or the harness around it.
"""
