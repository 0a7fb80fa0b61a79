"""The words that every room shares: metrics, frames, records, errors, clocks. Standard library, numpy, msgspec."""
