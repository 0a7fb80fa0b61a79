"""Protection of the servers against overload: limits per peer and deadlines for each step of a connection.

`peers` identifies a peer; on loopback that is a user, not an address. `gate` accepts connections for the controller's
server, `protocol` has the deadlines, `admission` limits requests, `descriptors` handles a lack of file descriptors. The
agent's server (`agent_http`) uses the same peers and limits. `listening` opens the sockets of both. Start with `gate`.
"""
