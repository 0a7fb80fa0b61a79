"""Checks of a test day. They use none of gangwatch's code.

`facts.py` contains their inputs: the process table, the jobs' own records, the users' requests, and gangwatch's output.
Each other module contains checks, which read the facts and yield doubts (possible failures). `oracle.py` converts a
doubt to a failure, at once or if the doubt persists.

No module here imports gangwatch, its packages, or the other parts of this test.
"""
