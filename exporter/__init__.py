"""Publish: Prometheus text, frames as JSON and on the wire, and the server that carries them."""

PART_OF = "gangwatch"
