"""Jobs that share slots: which pending jobs join which running jobs (one module per rule), and when they separate.

See docs/adr/0101 and 0102.
"""
