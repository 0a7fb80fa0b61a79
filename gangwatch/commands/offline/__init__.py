"""Commands that read files and need no cluster: `detect` reads recorded steps, `simulate` traces, `replay` journals.

Each command is in the module of its name.
"""
