"""Commands for jobs: submission, lists, output, cancellation, and the reasons of decisions.

Start at ``jobs.py``; ``shape.py`` adds the options of `submit` for elastic and structured gangs.
"""
