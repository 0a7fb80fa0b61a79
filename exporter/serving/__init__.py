"""How the servers stay up: who a peer is, how many connections it may have, and how long it may take over each step.

`peers` names a peer; on loopback that is a user, not an address. `gate` accepts connections for the controller's
server, `protocol` gives each of their steps a deadline, `admission` bounds requests. `descriptors` is about running out
of them. The agent's own server (exporter/serving/agent_http.py) uses the same peers and places. Start with `gate`.
"""
