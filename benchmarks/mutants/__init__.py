"""Mutation testing: the product is broken in one place (a mutant), and the tests that should fail are run.

``python -m benchmarks.mutants --json``. Start reading in mutant.py (what a mutant is and how it is applied), then
worker.py (how its tests run), then catalogue/ (the list, by package).
"""
