"""Certificates of nodes: signing, storage, and delivery to agents.

- authority.py   keys, requests and certificates; no files
- folder.py      an authority in a folder: issue, renew, revoke, list
- request.py     an agent's own key, and its certificate from the API server
- signer.py      approval and signing of the requests of pods
"""
