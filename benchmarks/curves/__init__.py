"""Precision-recall curves over stored runs, with a simple rule and published rules on the same traces.

``python -m benchmarks.curves``. `stored.py` reads stored runs and generates their traces again, `rules.py` judges the
traces, `points.py` computes the curves, and `svg.py` draws them.
"""
