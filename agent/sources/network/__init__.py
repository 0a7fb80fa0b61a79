"""Readers of the kernel's network state: TCP connections and the queues in front of network interfaces."""
