"""The step socket, where training processes register, and the step rings to which they write step records.

Start at ``step_socket.py``, the thread that serves all connections. ``step_connection.py`` is one connection, and
``tenants.py`` contains the quotas of each pod, job and user.
"""
