"""Tests of the Kubernetes backend."""
