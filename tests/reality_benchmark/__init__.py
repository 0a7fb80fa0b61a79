"""Tests of the benchmark that runs real processes under real faults."""
