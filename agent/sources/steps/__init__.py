"""The step socket, on which training processes register, and the rings that they write step records to.

Start at ``step_socket.py``. ``tenants.py`` holds the quotas of each pod, job and user.
"""
