"""Tests of the precision-recall curves of stored runs."""
