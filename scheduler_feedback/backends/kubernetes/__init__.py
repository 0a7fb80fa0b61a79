"""The Kubernetes backend: gangs of pods, placed by the core and bound over the API server.

``translate``, ``constraints`` and ``quantities`` are pure: objects in, the core's words out.
"""
