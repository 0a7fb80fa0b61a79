"""The oracle: what must hold in an ordinary day, judged from outside.

`facts.py` is what it is given: the process table, the jobs' own evidence, what users asked for, and what gangwatch said
on its API, command line and page. Each other module is one family of checks: a function that takes the facts known so
far and yields doubts. `oracle.py` turns doubts into failures: some at once, most only once they have lasted longer than
a busy machine explains.

Nothing in here imports gangwatch, its packages, or the harness around it.
"""
