"""Test days on a real cluster (`gangwatch up`): real jobs, users with typical activities, and independent checks.

Start at `oracle/__init__.py`, the checks: they compare gangwatch's output with the process table, the jobs' own
records and the users' requests, without gangwatch's code. `day.py` runs a day. `users.py` draws the users'
activities (`submissions.py`, `operations.py`). `cluster.py` uses gangwatch by command line, API and page.
"""
