"""Reading: answers to requests of the API and the pages, computed without the cycle's thread.

`snapshot_reader` answers a question from the newest snapshot, and caches the encoded answer until the state changes.
`reads` computes answers on one thread, and shares it fairly between peers. `listing` prepares a snapshot for lists,
`lists` returns pages of them. `state_snapshots` holds the snapshots that the cycle's thread publishes. Start with
`snapshot_reader`.
"""
