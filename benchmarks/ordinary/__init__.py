"""Ordinary days: a real `gangwatch up`, real jobs, users who do what users do, and an oracle that looks on.

`day.py` runs a day, `users.py` says what people do in it, `cluster.py` reaches gangwatch as people do (command line,
API, page). `oracle/` judges, and imports nothing of gangwatch: it compares what gangwatch says with the process table,
with what the jobs wrote about themselves, and with what was asked for. Start reading in `oracle/__init__.py`.
"""
