"""Mutants of the journal and of the command line."""

from benchmarks.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "gangwatch.support.redaction:remove_secrets",
        "key=len, reverse=True",
        "key=len",
        ("tests/gangwatch/test_support_bundle.py",),
    ),
    Mutant(
        "gangwatch.support.redaction:remove_secrets",
        "json.dumps(secret, ensure_ascii=False)[1:-1],\n            ",
        "",
        ("tests/gangwatch/test_support_bundle.py",),
    ),
    Mutant(
        "journal.recovery:_is_recorded",
        ' or replace(action, reason="") == replace(decode_action(record), reason="")',
        "",
        ("tests/journal/test_recovery.py",),
    ),
    Mutant(
        "journal.recovery:_undo",
        "JobState.PENDING, action.attempt - 1, []",
        "JobState.PENDING, action.attempt, []",
        ("tests/journal/test_recovery.py",),
    ),
    Mutant("journal.recovery:follow", "reversed(wrong)", "wrong", ("tests/journal/test_recovery.py",)),
    Mutant(
        "journal.recovery:follow", "if done == wrong:\n            continue", "", ("tests/journal/test_recovery.py",)
    ),
    Mutant("journal.recovery:run_again", "state.cycle = row.cycle - 1", "", ("tests/journal/test_recovery.py",)),
    Mutant(
        "journal.recovery:run_again",
        "max(count_before, *numbers, 0)",
        "count_before",
        ("tests/journal/test_recovery.py",),
    ),
    Mutant("journal.recovery:run_again", "drop_index(state)", "", ("tests/journal/test_recovery.py",)),
    Mutant(
        "journal.recovery:run_again",
        "len(outcome.actions) == len(row.decided) and all(",
        "all(",
        ("tests/journal/test_recovery.py",),
    ),
    Mutant("journal.retention:_needed_after", "cycles[-1][0]", "cycles[0][0]", ("tests/journal/test_store.py",)),
    Mutant("journal.retention:write_sum", " if number in kept}", "}", ("tests/journal/test_format_needs.py",)),
    Mutant(
        "journal.format_needs:check_reader",
        "if is_newer or unknown:",
        "if is_newer:",
        ("tests/journal/test_format_needs.py",),
    ),
    Mutant(
        "journal.format_needs:raise_minimum",
        "version_key(release) > version_key(minimum)",
        "version_key(release) < version_key(minimum)",
        ("tests/journal/test_format_needs.py",),
    ),
    Mutant(
        "journal.format_needs:write_needs",
        "features |= used",
        "features = dict(used)",
        ("tests/journal/test_format_needs.py",),
    ),
    Mutant(
        "journal.format_needs:write_needs",
        "minimum = max([minimum",
        "minimum = min([minimum",
        ("tests/journal/test_format_needs.py",),
    ),
)
