"""CycleContext telemetry into verdicts, and verdicts into what runs where."""

PART_OF = "gangwatch"
