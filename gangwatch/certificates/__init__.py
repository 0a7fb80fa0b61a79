"""Certificates of nodes: signing, storage, and delivery to agents.

- authority.py            keys, requests and certificates; no files
- folder.py               an authority in a folder: issue, renew, revoke, list
- request.py              an agent's own key, and its certificate from the API server
- renewal.py              renewal of an agent's certificate before it expires
- signer.py               approval and signing of the requests of pods
- cluster_revocations.py  revocations of a Kubernetes cluster
"""
