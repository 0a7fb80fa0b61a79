"""Templates of jobs: a file with parameters that becomes the specification of a job.

`gangwatch submit --template NAME` uses one, and `gangwatch templates` lists them. template.py is pure; files.py finds
the files. The folder shipped/ has the templates that come with gangwatch.
"""
