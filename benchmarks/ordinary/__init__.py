"""Ordinary days: a real `gangwatch up`, real jobs, users with typical activities, and an independent oracle.

`day.py` runs a day. `users.py` draws its activities (`submissions.py`, `operations.py`). `cluster.py` accesses
gangwatch as people do (command line, API, page). `oracle/` judges without importing gangwatch: it compares gangwatch's
output with the process table, the jobs' own records, and the requests. Start reading in `oracle/__init__.py`.
"""
