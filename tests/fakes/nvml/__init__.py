"""Fake NVML library with the real interface; build.py compiles the C code, control.py controls it."""
