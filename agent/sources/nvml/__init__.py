"""Access to the NVIDIA driver through NVML.

Start at ``nvml.py``, which loads the library and prepares the calls; ``nvml_enumeration.py`` lists the GPUs.
"""
