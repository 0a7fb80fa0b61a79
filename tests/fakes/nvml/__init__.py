"""Fake NVML library with the real interface: C code that build.py compiles and control.py controls."""
