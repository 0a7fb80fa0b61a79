"""``python -m benchmarks.crosscheck.ablation --seed S --runs N``: what changes without each part of the detectors.

A part is replaced by one that does nothing, in this process only. The same files are judged each time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.crosscheck.__main__ import detected
from benchmarks.crosscheck.score import judged, summary
from benchmarks.crosscheck.trace import generate, write

_D = "scheduler_feedback.detectors."
_CHECKS, _PERSISTENCE = _D + "straggler.alarm_checks.", _D + "straggler.persistence."
_RULES, _CHANGES = _D + "workload.workload_rules.", _D + "workload.change_rules."


def _gives(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _first(judgement: Any, *_: Any) -> Any:
    return judgement


PARTS: dict[str, tuple[str, Any]] = {
    "start-up": (_D + "steps.baseline.after_start_up", _first),
    "role-outlier": (_D + "steps.baseline._role_outlier", _gives(None)),
    "early-baseline": (_D + "straggler.straggler.learn_early", _gives(None)),
    "group-intersection": (_D + "straggler.straggler.intersected", lambda *given: given[-1]),
    "expected-work": (_D + "straggler.straggler.fit", _gives(None)),
    "sequences": (_D + "straggler.straggler.judged_by_sequences", _first),
    "rotation": (_D + "straggler.straggler.judged_by_rotation", _first),
    "doubt": (_D + "straggler.straggler.doubt", _gives("")),
    "own-work": (_D + "straggler.straggler.is_own_work", _gives(False)),
    "whole-gang-note": (_D + "straggler.straggler.whole_gang", _gives([])),
    "one-step": (_PERSISTENCE + "_is_one_step", _gives(False)),
    "irregular": (_PERSISTENCE + "_is_irregular", _gives(False)),
    "first-rank": (_PERSISTENCE + "_is_first", _gives(False)),
    "period-of-runs": (_PERSISTENCE + "is_periodic", _gives(False)),
    "period-of-spells": (_PERSISTENCE + "spell_period", _gives(0)),
    "same-expert": (_PERSISTENCE + "_same_expert_is_slow", _gives(False)),
    "popular-expert": (_PERSISTENCE + "_may_be_popular", _gives(False)),
    "other-spells": (_PERSISTENCE + "_longest_of_others", _gives(0)),
    "spells-of-node": (_PERSISTENCE + "_spells_of_node", _gives((0, 1))),
    "returning": (_PERSISTENCE + "_keeps_returning", _gives(False)),
    "whole-node": (_PERSISTENCE + "_is_whole_node", _gives(False)),
    "stages": (_RULES + "_stages", _gives(())),
    "unequal-sequences": (_RULES + "_sequences", _gives(())),
    "rhythms": (_RULES + "_rhythms", _gives(())),
    "beats": (_RULES + "_beats", _gives(())),
    "offsets": (_RULES + "_offsets", _gives(())),
    "stages-of-node": (_CHANGES + "_slow_stages_of_node", _gives(None)),
    "grown": (_CHANGES + "_grown", _gives(())),
    "stage-grown": (_CHANGES + "_stage_grown", _gives(())),
    "lengths-grown": (_CHANGES + "_lengths_grown", _gives(())),
    "pauses": (_CHANGES + "_pauses", _gives(())),
}
"""For each part, the function that is replaced, and its replacement."""

CHECKS = (
    "_slows_the_job", "_has_no_more_tokens", "_peers_wait", "_has_no_larger_part", "_has_no_input_to_wait_for",
    "_has_no_period", "_has_no_other_reason",
)  # fmt: skip
PARTS |= {f"check{name.replace('_', '-')}": (_CHECKS + name, _gives(None)) for name in CHECKS}

COLUMNS = ("accusations_right", "own_work_right", "healthy_accused", "kind_confusion", "recall", "notes")


def figures(files: list[tuple[Any, Path]]) -> tuple[str, ...]:
    """Return the figures of these traces, in the order of COLUMNS."""
    results = [judged(trace, detected(path)) for trace, path in files]
    found = summary(results)
    notes = sum(v["kind"] == "unknown" for r in results for v in r["verdicts"])
    return (*(str(found[name]) for name in COLUMNS[:4]), found["recall"]["known"], str(notes))


def without(part: str, files: list[tuple[Any, Path]]) -> tuple[str, ...]:
    """Return the figures without one part."""
    target, replacement = PARTS[part]
    module, name = target.rsplit(".", 1)
    if module + "." == _CHECKS:
        from scheduler_feedback.detectors.straggler import alarm_checks

        left = tuple(check for check in alarm_checks.CHECKS if check.__name__ != name)
        with mock.patch(_CHECKS + "CHECKS", left):
            return figures(files)
    with mock.patch(target, replacement):
        return figures(files)


def main() -> None:
    """Print the figures with all parts, and those without each part for which they differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crosscheck.ablation", description=__doc__)
    parser.add_argument("--seed", type=int, default=3000, help="seed of the first trace (default 3000)")
    parser.add_argument("--runs", type=int, default=80, help="number of traces (default 80)")
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS), help="parts (default all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for seed in range(options.seed, options.seed + options.runs):
            trace = generate(seed, 64, 8000, "known")
            path = Path(folder) / f"{seed}.jsonl"
            write(trace, path)
            files.append((trace, path))
        usual = figures(files)
        print("| without | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
        print("| nothing | " + " | ".join(usual) + " |", flush=True)
        for part in options.only:
            found = without(part, files)
            cells = ["=" if one == other else one for one, other in zip(found, usual, strict=True)]
            print(f"| {part} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
