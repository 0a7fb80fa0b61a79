"""``python -m benchmarks.crosscheck.ablation --seed S --runs N``: what changes without each part of the detectors.

A part is replaced by one that does nothing, in this process only. Only files in which the part did anything are judged
again: their number is in the column *traces*.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.crosscheck.__main__ import detected
from benchmarks.crosscheck.effects import EFFECTS
from benchmarks.crosscheck.score import judged, summary
from benchmarks.crosscheck.trace import generate, write
from scheduler_feedback.detectors.straggler.alarm_checks import CHECKS

_D = "scheduler_feedback.detectors."
_CHECKS, _PERSISTENCE = _D + "straggler.alarm_checks.", _D + "straggler.persistence."
_RULES, _CHANGES = _D + "workload.workload_rules.", _D + "workload.change_rules."


def _gives(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _first(judgement: Any, *_: Any) -> Any:
    return judgement


PARTS: dict[str, tuple[str, Any]] = {
    "start-up": (_D + "steps.baseline.after_start_up", _first),
    "role-outlier": (_D + "steps.baseline._outlier", _gives(None)),
    "early-baseline": (_D + "straggler.straggler.learn_early", _gives(None)),
    "group-intersection": (_D + "straggler.straggler.intersected", lambda *given: given[-1]),
    "expected-work": (_D + "straggler.straggler.fit", _gives(None)),
    "sequences": (_D + "straggler.straggler.judged_by_sequences", _first),
    "rotation": (_D + "straggler.straggler.judged_by_rotation", _first),
    "doubt": (_D + "straggler.straggler.doubt", _gives("")),
    "own-work": (_D + "straggler.straggler.is_own_work", _gives(False)),
    "whole-gang-note": (_D + "straggler.straggler.whole_gang", _gives([])),
    "one-step": (_PERSISTENCE + "_is_one_step", _gives(False)),
    "first-rank": (_PERSISTENCE + "_is_first", _gives(False)),
    "period-of-spells": (_PERSISTENCE + "spell_period", _gives(0)),
    "same-expert": (_PERSISTENCE + "same_expert_is_slow", _gives(False)),
    "popular-expert": (_PERSISTENCE + "may_be_popular", _gives(False)),
    "routes-alike": (_D + "straggler.popular_experts.routes_alike", _gives(False)),
    "own-excess": (_D + "straggler.alarm_case._own_excess", _gives(float("inf"))),
    "other-spells": (_PERSISTENCE + "longest_of_others", _gives(0)),
    "spells-of-node": (_PERSISTENCE + "_spells_of_node", _gives((0, 1))),
    "returning": (_PERSISTENCE + "_keeps_returning", _gives(False)),
    "whole-node": (_PERSISTENCE + "has_slow_node", _gives(False)),
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

PARTS |= {f"check{check.__name__.replace('_', '-')}": (_CHECKS + check.__name__, _gives(None)) for check in CHECKS}

COLUMNS = ("accusations_right", "own_work_right", "healthy_accused", "kind_confusion", "recall", "notes")


Judged = dict[str, Any]


def figures(results: Sequence[Judged]) -> tuple[str, ...]:
    """Return the figures of these results, in the order of COLUMNS."""
    found = summary(results)
    notes = sum(v["kind"] == "unknown" for r in results for v in r["verdicts"])
    return (*(str(found[name]) for name in COLUMNS[:4]), found["recall"]["known"], str(notes))


def with_all(trace: Any, path: Path) -> tuple[Judged, set[str]]:
    """Return the result of one file with all parts, and the names of the parts that did anything in it."""
    active: set[str] = set()
    with ExitStack() as stack:
        for part, (target, replacement) in PARTS.items():
            module, name = target.rsplit(".", 1)
            if module + "." != _CHECKS:
                watch = _watched(part, getattr(import_module(module), name), replacement, active)
                stack.enter_context(mock.patch(target, watch))
        checks = [_watched(f"check{one.__name__.replace('_', '-')}", one, _gives(None), active) for one in CHECKS]
        stack.enter_context(mock.patch(_CHECKS + "CHECKS", tuple(checks)))
        return judged(trace, detected(path)), active


def _watched(part: str, real: Callable[..., Any], replacement: Callable[..., Any], active: set[str]) -> Any:
    """Return the function, which adds its part to `active` if its result differs from that of the replacement."""

    @functools.wraps(real)
    def watch(*given: Any, **named: Any) -> Any:
        found, nothing = real(*given, **named), replacement(*given, **named)
        if isinstance(found, Iterator):
            found = tuple(found)
        if found is not nothing and (type(found) is not type(nothing) or found != nothing):
            active.add(part)
        return found

    return watch


def without(part: str, trace: Any, path: Path) -> Judged:
    """Return the result of one file without one part."""
    target, replacement = PARTS[part]
    module, name = target.rsplit(".", 1)
    if module + "." == _CHECKS:
        left = tuple(check for check in CHECKS if check.__name__ != name)
        with mock.patch(_CHECKS + "CHECKS", left):
            return judged(trace, detected(path))
    with mock.patch(target, replacement):
        return judged(trace, detected(path))


def main() -> None:
    """Print the figures with all parts, and those without each part for which they differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crosscheck.ablation", description=__doc__)
    parser.add_argument("--seed", type=int, default=3000, help="seed of the first trace (default 3000)")
    parser.add_argument("--runs", type=int, default=80, help="number of traces (default 80)")
    parser.add_argument("--most-ranks", type=int, default=64, help="largest job (default 64)")
    parser.add_argument("--effect", choices=tuple(EFFECTS), help="only traces with this effect (default all)")
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS), help="parts (default all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files: list[tuple[Any, Path]] = []
        for seed in itertools.count(options.seed):
            if len(files) == options.runs:
                break
            trace = generate(seed, options.most_ranks, 8000, "known")
            if options.effect and options.effect not in trace.effects:
                continue
            path = Path(folder) / f"{seed}.jsonl"
            write(trace, path)
            files.append((trace, path))
        with_parts = [with_all(*one) for one in files]
        usual = figures([result for result, _ in with_parts])
        print("| without | traces | " + " | ".join(COLUMNS) + " |\n|---|---|" + "---|" * len(COLUMNS))
        print(f"| nothing | {len(files)} | " + " | ".join(usual) + " |", flush=True)
        for part in options.only:
            rerun = [part in active for _, active in with_parts]
            found = figures(
                [without(part, *one) if again else result
                 for one, again, (result, _) in zip(files, rerun, with_parts, strict=True)]
            )  # fmt: skip
            cells = ["=" if one == other else one for one, other in zip(found, usual, strict=True)]
            print(f"| {part} | {sum(rerun)} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
