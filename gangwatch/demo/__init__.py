"""`gangwatch demo`: a real straggler on this machine, found, moved away from, and backfilled behind."""
