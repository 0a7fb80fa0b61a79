"""Mutation testing: breaks named places of the product one at a time and runs the tests that should notice.

``python -m benchmarks.mutants --json``. Start reading in mutant.py (what a mutant is and how it is applied), then
worker.py (how its tests run), then catalogue/ (the list, by package).
"""
