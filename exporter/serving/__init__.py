"""Protection of the servers against overload: limits per peer and deadlines for each step of a connection.

Start with `gate`, which accepts connections for the controller's server. `peers` identifies a peer (on loopback a
user, not an address), `protocol` has the deadlines, `admission` limits requests, `descriptors` handles a lack of
file descriptors. The agent's server is `agent_http`. `listening` opens the sockets of both.
"""
