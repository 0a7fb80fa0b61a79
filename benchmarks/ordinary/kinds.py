"""Names of all kinds of activities on a test day. Over fifteen seeds, each must occur at least once."""

from __future__ import annotations

SUBMISSIONS = (
    "one_rank", "gang", "burst", "array", "dependency", "fails_with_code", "fails_with_signal", "cannot_start",
    "retries", "hangs", "ignores_sigterm", "forks", "setsid", "long_log", "computes", "training_reported",
    "training_silent", "training_torch", "elastic", "guests", "owner", "borrowed", "stretched", "one_node", "priority",
)  # fmt: skip
OPERATIONS = (
    "cancel", "cancel_waiting", "cancel_array", "maintenance", "quarantine", "release", "freeze", "thaw",
    "reload", "reload_policy", "reload_refused", "hold", "unhold", "rest", "read_log",
)  # fmt: skip
TROUBLES = (
    "kill_controller", "kill_agent", "kill_supervisor", "stop_daemon", "machine_busy",
    "rank_stopped", "rank_held", "rank_killed", "rank_outspun",
)  # fmt: skip
READERS = ("by_api", "by_command", "read_command_line", "read_page", "read_words")
SEEN = ("preempted", "resized", "verdicts_right")
"""Events that are observed and counted like activities: gangs preempted, elastic gangs resized, right verdicts."""

KINDS = (*SUBMISSIONS, *OPERATIONS, *TROUBLES, *READERS, *SEEN)
