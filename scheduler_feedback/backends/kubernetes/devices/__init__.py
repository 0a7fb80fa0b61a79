"""Dynamic resource allocation: devices that drivers publish, and the ResourceClaims of gangs. No I/O.

``device_objects`` has the API's objects, ``selectors`` evaluates CEL, ``inventory`` has the devices of each node,
``allocation`` chooses devices for claims, ``pod_claims`` resolves a pod's claims, and ``device_cache`` joins them for
the informer cache. Start with ``allocation``.
"""
