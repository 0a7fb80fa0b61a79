"""The Kubernetes backend: the cycle places gangs of pods, and this package binds them over the API server.

``objects`` translates Kubernetes objects into the cycle's terms, and ``api_server`` has the client, the watches, the
informer cache and the leader lease. ``attempts`` binds and stops gangs and probes nodes. ``published`` writes the
cycle's decisions on objects and reads them back after a restart. ``cluster_backend`` has what the two backends share:
``kubernetes_backend`` places gangs, and ``advisor`` only observes gangs that another scheduler places, and writes
advice. ``agents`` announces the agents' pods to the feed.
"""
