"""Publication of frames: Prometheus text, JSON, the wire format, pushes, and the HTTP server."""

PART_OF = "gangwatch"
