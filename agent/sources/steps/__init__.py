"""The step socket, where training processes register, and the rings to which they write step records.

Start at ``step_socket.py``. ``tenants.py`` holds the quotas of each pod, job and user.
"""
