"""Data types shared by all packages: metrics, frames, records, errors, clocks. Needs only numpy and msgspec."""
