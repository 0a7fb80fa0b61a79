"""One certificate a node: who signs it, where it lies, and how it comes to an agent.

- authority.py   keys, requests and certificates; no files
- folder.py      an authority in a folder: issue, renew, revoke, list
- request.py     an agent's own key, and its certificate by the API server
- signer.py      which requests of pods are approved and signed
"""
