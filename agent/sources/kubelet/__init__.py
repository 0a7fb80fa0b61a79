"""Access to the kubelet: its pod-resources socket and its folder of pod logs.

Start at ``kubelet.py``.
"""
