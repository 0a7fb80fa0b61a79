"""Access to the kernel log (/dev/kmsg), and the meaning of its messages."""
