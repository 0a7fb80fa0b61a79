"""`gangwatch demo`: on this machine, gangwatch detects a real straggler, moves the job and backfills its slots."""
