"""Publication of frames: Prometheus text, JSON, the wire format, pushes, and the HTTP server.

Start at ``server.py``; ``publisher.py`` passes it each frame. ``prometheus/`` and ``otlp/`` have the formats, ``push/``
sends them, ``security/`` has TLS and passwords, ``serving/`` the limits of the HTTP server.
"""

PART_OF = "gangwatch"
