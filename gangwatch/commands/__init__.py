"""The commands of `gangwatch`. ``gangwatch/cli.py`` lists them and imports a command's module only when it runs.

Start at ``options.py``, the options and output functions that commands share. ``jobs/``: submit and inspect jobs.
``offline/``: commands that need no cluster. ``authentication/``: certificates and tokens. The other modules have the
name of their command; ``cluster.py`` contains the commands for nodes and the queue.
"""
