"""Durations: conversion to nanoseconds, and the form in which a person reads them."""

from __future__ import annotations


def nanoseconds(seconds: float) -> int:
    """Convert seconds to nanoseconds."""
    return round(seconds * 1e9)


def span(seconds: float) -> str:
    """Format a duration for a person: '0.4 s', '42 s', '3 min', '2.5 h'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
