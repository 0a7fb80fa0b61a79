"""Series of the agents' frames: counter features of devices, consumption of ranks, and events of devices."""
