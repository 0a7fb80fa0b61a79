"""Scheduling with feedback: telemetry becomes verdicts, and verdicts become scheduling decisions."""

PART_OF = "gangwatch"
