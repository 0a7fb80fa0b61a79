"""Access to the kubelet: its pod-resources socket, which lists devices of pods, and its folder of pod logs.

Start at ``kubelet.py``.
"""
