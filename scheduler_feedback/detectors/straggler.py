"""The straggler detector: which rank makes its gang wait, for its own reason.

1. Completed steps are cut into windows (windows.py). 2. The warm-up's windows give a frozen baseline (baseline.py).
3. Each later window gives each rank a residual against its own past and its peers, in standard deviations; a CUSUM
adds them up. 4. A rank whose sum alarms passes the gates (gates.py) or is refused, with the reason. 5. A verdict
stands until its rank has kept pace for a while.

Residuals on logarithms, frozen scale, clipped CUSUM and wait inversion follow trials on public step traces; what the
constants rest on stands beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_feedback.core.fleet import Sample
from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.core.telemetry import FEATURE, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors import weighing
from scheduler_feedback.detectors.baseline import (
    SKIPPED_STEPS,
    SPREAD_FLOOR,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    Baseline,
    learn,
    learn_early,
    log_compute,
)
from scheduler_feedback.detectors.gates import (
    HIT_SIGMAS,
    LEAST_SLOWDOWN,
    Case,
    Judged,
    Judgement,
    judge,
    slow_windows,
    stopped_again,
)
from scheduler_feedback.detectors.intersection import intersected
from scheduler_feedback.detectors.panel import Panel
from scheduler_feedback.detectors.signatures import MARGIN, OF_HOST, OF_NIC, Priors, evidence, weigh
from scheduler_feedback.detectors.switches import Switches
from scheduler_feedback.detectors.watched import RECENT_WINDOWS, Standing, Watched, dump, load, rest
from scheduler_feedback.detectors.windows import (
    Window,
    blame_stopped,
    cut,
    join,
    middle_of_others,
    middle_of_peers,
    places,
    spread,
    spread_of_others,
)
from scheduler_feedback.detectors.work import Work, fit

CLIP_SIGMAS = 6.0
"""One window adds at most this: a single stall, however long, can't alarm; two that are near one another can."""

ALLOWANCE_SIGMAS = 0.75
ALARM = 8.0
"""Trials on public traces: an allowance of 0.75, an alarm at 6 to 10: 5 % found in three steps without false ranks."""

HIGHEST_SCORE = 12.0
"""Bounds how long a sum takes to come down after the fault has gone."""

LEAST_HITS = 3
LEAST_HITS_STOPPED = 2
"""Persistence: fewer than three slow windows are an accident. Two suffice where the rank was also seen stopped: no
accident stops a process twice, and stalls of seconds make few windows."""

ATTRIBUTION_NS = 2_000_000_000
"""Counters sampled once a second say little of where time went in a shorter interval."""

CAUSE_NS = 6_000_000_000
"""An alarm whose cause is not clear waits so long for it to become clear before it is told without."""

CLEAR_WINDOWS = 10
"""A verdict holds until the rank was in none of so many windows slow, and on their mean within the allowance. Longer
than the pauses of a fault that comes and goes; waiting for the sum to run down would take three times as long."""

UNEASY_SCORE = ALARM / 3
"""From a third of the alarm on an episode is not over."""

LEAST_CONFIDENCE = 0.5
"""Less likely than not is no verdict but an abstention."""

ACTING_CONFIDENCE = 0.9
"""A verdict told with less is told again when it reaches this: actions on running jobs wait for it (core/state.py)."""

PATIENCE_WINDOWS = 3
"""An alarm that fails the gates so often in a row is told as an abstention."""

GANG_SLOWDOWN = 1.10
GANG_WINDOWS = 8
GANG_STEPS = 25
"""So much slower for so long with nobody standing out: told as an abstention about the gang. Windows of one step are
noisier by far."""

CALM_WINDOWS = 10
"""So many quiet windows end an episode; until then a reason is told once."""

FIRST_WINDOWS = 8
"""So many windows give a first norm, by which the rest of the warm-up is judged already."""

WORK_FIELDS = ("compute", "tokens", "squares")

MISSING = "process_counters"

OF_PARTS = frozenset(
    {Cause.THERMAL, Cause.POWER, Cause.GPU, Cause.MEMORY, Cause.NVLINK, Cause.PCIE, Cause.NIC, Cause.LINK}
)
"""What a part is remembered for: not what was done to its processes."""

LARGE_GANG = 64
"""From here on the spread of all ranks stands for that of the others: one of so many hardly moves it."""

ABSENT_NS = 600_000_000_000
"""A gang out of sight for ten minutes is over (as in core/fleet.py); a restarted controller sees gangs again sooner."""


class StragglerDetector:
    """Finds the member that its gang waits for. Owned by one thread.

    timed: windows of about a second, as frames come; else each step is a window and the first counts like the others,
    as in a recorded trace, whose unit of time may be anything.
    """

    name = "straggler"

    def __init__(self, timed: bool = True, switches: Switches | None = None, panel: Panel | None = None) -> None:
        self._timed = timed
        self._switches = Switches() if switches is None else switches
        self._panel = Panel(self._switches) if panel is None else panel
        self._priors = Priors()
        self._crowded: set[str] = set()
        self._watched: dict[str, Watched] = {}
        self._roles: dict[str, tuple[tuple[int, ...], FloatArray]] = {}

    def tick(self, telemetry: Telemetry) -> list[Finding]:
        """Look at what was completed since the last tick; the findings that are new."""
        findings: list[Finding] = []
        present = set()
        self._panel.at(telemetry)
        hosts = Counter(host for job in telemetry.jobs for host in set(job.shape.sharing.get("host", ())) if host)
        self._crowded = {host for host, jobs in hosts.items() if jobs > 1}
        for job in telemetry.jobs:
            name = job.shape.job
            present.add(name)
            watched = self._watch(job, telemetry.now_ns)
            if watched is None or job.steps is None or not len(job.steps):
                continue
            steps = watched.take_in(job.steps)
            windows, used = cut(steps, watched.where, job.consumed, self._timed, watched.work)
            watched.pending = rest(steps, used)
            for window in windows:
                findings += self._take(name, watched, window, job)
        gone = [n for n, w in self._watched.items() if n not in present and telemetry.now_ns - w.seen_ns > ABSENT_NS]
        for name in gone:
            del self._watched[name]
            self._roles.pop(name, None)
        return findings

    def measures(self) -> Iterator[Sample]:
        """Samples of the catalogue: how much slower each rank makes its gang, over the newest windows."""
        for name, watched in self._watched.items():
            newest = [judged.window for judged in list(watched.history)[-RECENT_WINDOWS:] if judged.window.known]
            if newest:
                step_seconds, gain = float(join(newest, "step_seconds")), join(newest, "gain")
                ratios = step_seconds / np.maximum(step_seconds - gain, 1e-9)
                for rank, ratio in zip(watched.ranks, ratios.tolist(), strict=True):
                    yield "gangwatch_rank_slowdown_ratio", (("gang", name), ("rank", str(rank))), ratio

    def snapshot(self) -> bytes:
        """Baselines, sums and standing verdicts: without them a restart during a fault would learn it as healthy."""
        return dump(self._watched, self._roles)

    def restore(self, data: bytes) -> None:
        """Take a snapshot's place. Raises ValueError where it is not one of ours."""
        self._watched, self._roles = load(data)

    # --- one gang -----------------------------------------------------------------------------------------------------

    def _watch(self, job: JobTelemetry, now_wall_ns: int) -> Watched | None:
        """The memory of this attempt, begun anew for a new one or new ranks; None while there is nothing to compare."""
        shape = job.shape
        name, watched = shape.job, self._watched.get(shape.job)
        if watched is not None and watched.shape is shape:
            watched.seen_ns = now_wall_ns
            return watched
        if len(shape) < 2:
            return None
        ranks = tuple(shape.ranks.tolist())
        if watched is not None and watched.attempt == shape.attempt:
            watched.seen_ns = now_wall_ns
            if watched.ranks == ranks:
                if watched.where.names != (where := places(shape)).names or (watched.where.index != where.index).any():
                    watched.where = where
                watched.shape = shape
                return watched
            if set(ranks) < set(watched.ranks):
                return None  # after a restart nodes are heard again one by one
        elif watched is not None and watched.attempt > shape.attempt:
            return None
        elif watched is not None and watched.baseline is not None and watched.baseline.known:
            base = log_compute(watched.baseline.compute, watched.baseline.step_seconds)
            self._roles[name] = (watched.ranks, base - np.median(base))
        watched = Watched(shape.attempt, ranks, places(shape), now_wall_ns, shape)
        watched.to_skip = SKIPPED_STEPS if self._timed else 0
        watched.forget_course()
        self._watched[name] = watched
        return watched

    def _take(self, name: str, watched: Watched, window: Window, job: JobTelemetry) -> list[Finding]:
        findings: list[Finding] = []
        baseline = watched.baseline
        if baseline is not None:
            self._judge_window(watched, baseline, blame_stopped(window, baseline.shared_wait, watched.where))
            findings += self._conclude(name, watched, baseline, job)
        if baseline is None or not baseline.final:
            findings += self._warm_up(name, watched, window, job)
        return findings

    def _warm_up(self, name: str, watched: Watched, window: Window, job: JobTelemetry) -> list[Finding]:
        """Learn what is healthy: from the whole warm-up, and while it lasts from what there is, as long as all is calm.

        A rank that began to be slow in the meantime is not learned as healthy: the norm then stays as it was.
        """
        if watched.warm_up and watched.warm_up[-1].known != window.known:
            watched.warm_up.clear()  # whether waits are known must not change within a baseline
        watched.warm_up.append(window)
        windows, before = watched.warm_up, watched.baseline
        seconds = sum(w.steps * w.step_seconds for w in windows)
        role = self._roles.get(name)
        known_role = role[1] if role is not None and role[0] == watched.ranks else None
        long_enough = not self._timed or seconds >= WARM_UP_SECONDS
        final = long_enough and sum(w.steps for w in windows) >= WARM_UP_STEPS
        uneasy = bool((watched.score >= UNEASY_SCORE).any()) or bool(watched.standing)
        if before is not None and uneasy:
            watched.baseline = replace(before, final=final)
        elif long_enough and (final or (len(windows) >= FIRST_WINDOWS and len(windows) % 4 == 0)):
            if watched.work is None:
                compute, tokens, squares = (np.array([getattr(w, field) for w in windows]) for field in WORK_FIELDS)
                watched.work = fit(compute, tokens, squares)
                windows[:] = _given_usual_work(windows, watched.work)
            watched.baseline = learn(windows, known_role, watched.where, final)
        elif before is None:
            watched.baseline = learn_early(windows, known_role, watched.where)
        if watched.baseline is None:
            return []
        if final:
            watched.warm_up = []
        watched.best_step_seconds = min(watched.best_step_seconds, watched.baseline.step_seconds)
        if before is not None or not watched.baseline.from_start.any():
            return []
        for past in windows:  # a rank slow from the start has been slow in these already
            self._judge_window(watched, watched.baseline, past)
        return self._conclude(name, watched, watched.baseline, job)

    def _judge_window(self, watched: Watched, baseline: Baseline, window: Window) -> None:
        """One window's residuals into the sums."""
        watched.counted += 1
        sigmas = np.zeros(len(watched.ranks))
        if window.known and baseline.known:
            sigmas = self._sigmas(watched, baseline, window)
            step = np.clip(sigmas, -CLIP_SIGMAS, CLIP_SIGMAS) - ALLOWANCE_SIGMAS
            score = np.clip(watched.score + step, 0.0, HIGHEST_SCORE)
            watched.since[(score > 0) & (watched.since < 0)] = watched.counted - 1
            watched.since[score <= 0] = -1
            watched.score = score
        watched.history.append(Judged(window, sigmas))
        newest = [judged.window for judged in list(watched.history)[-RECENT_WINDOWS:]]
        if len(newest) == RECENT_WINDOWS:
            recent = sum(one.steps * one.step_seconds for one in newest) / sum(one.steps for one in newest)
            watched.best_step_seconds = min(watched.best_step_seconds, recent)

    def _sigmas(self, watched: Watched, baseline: Baseline, window: Window) -> FloatArray:
        """Excess of each rank over its own past and, in groups that can vote, its peers, in standard deviations."""
        now = log_compute(window.compute, baseline.step_seconds)
        shift = now - log_compute(baseline.reference, baseline.step_seconds)
        watched.shifts.append(shift)
        residual = shift - middle_of_others(shift, watched.where)
        peers = now - middle_of_peers(now, watched.where)
        if not self._switches.self_residual:
            residual = np.where(np.isnan(peers), 0.0, peers)
        residual = np.where(baseline.from_start, residual, np.fmin(residual, peers))
        residual[~window.present] = 0.0
        recent = np.array(watched.shifts)
        scale = np.maximum(baseline.own_spread, SPREAD_FLOOR)
        if not self._switches.frozen_scale:
            scale = np.maximum((recent - np.median(recent, axis=1, keepdims=True)).std(axis=0), SPREAD_FLOOR)
        if len(now) > LARGE_GANG:
            scale = np.maximum(scale, spread(recent - np.median(recent, axis=1, keepdims=True)))
        else:
            for rank in np.flatnonzero(residual > ALLOWANCE_SIGMAS * scale):
                scale[rank] = max(scale[rank], spread_of_others(recent, int(rank)))
        sigmas: FloatArray = residual / scale
        return sigmas

    def _conclude(self, name: str, watched: Watched, baseline: Baseline, job: JobTelemetry) -> list[Finding]:
        findings: list[Finding] = []
        window = watched.history[-1].window
        alarmed = [rank for rank in np.flatnonzero(watched.score >= ALARM).tolist() if self._persistent(watched, rank)]
        if self._switches.group_intersection and len(alarmed) > 1:
            newest = np.array([judged.sigmas for judged in list(watched.history)[-LEAST_HITS:]])
            alarmed = intersected(newest.mean(axis=0) >= HIT_SIGMAS, job.shape, alarmed)
        watched.refused[[r for r in range(len(watched.ranks)) if r not in alarmed]] = 0
        for rank in alarmed:
            if rank in watched.standing and watched.standing[rank].told_confidence >= ACTING_CONFIDENCE:
                continue
            if watched.refused[rank] > PATIENCE_WINDOWS and watched.counted % PATIENCE_WINDOWS:
                continue  # its reasons have been looked at often enough to look less often
            judged = judge(self._case(watched, baseline, rank, alarmed, job))
            judgement = self._with_counters(judged, job, baseline, bool(self._mates(watched, rank)))
            if not judgement.refusal and judgement.confidence < LEAST_CONFIDENCE:
                judgement = _too_weak(judgement)
            if not judgement.refusal:
                judgement = self._with_past(judgement, job.shape)
                watched.refused[rank] = 0
                findings += self._verdict(name, watched, judgement, job)
            elif not judgement.harmless and rank not in watched.standing:
                watched.refused[rank] += 1
                if watched.refused[rank] >= PATIENCE_WINDOWS and rank not in watched.told:
                    watched.told.add(rank)
                    findings.append(self._abstention(name, watched, judgement))
        findings += self._cleared(name, watched, window)
        findings += self._whole_gang(name, watched, baseline, bool(alarmed))
        return findings

    def _with_counters(self, judgement: Judgement, job: JobTelemetry, baseline: Baseline, mates: bool) -> Judgement:
        """The cause as the devices' counters tell it, where the processes' own do not."""
        if judgement.refusal or judgement.cause is not Cause.UNKNOWN or job.shape.job not in self._panel.columns:
            return judgement
        column = self._panel.of(job.shape.job).start + judgement.rank
        if np.isnan(self._panel.newest[:, column]).all():
            return judgement
        from_start = bool(baseline.from_start[judgement.rank])
        weighed = weigh(self._panel, np.array([column], np.intp), self._priors, self._switches, from_start)
        told = (*(item for item in judgement.evidence if item.measure != MISSING), *evidence(self._panel, column))
        cause = weighed.name(0)
        hosts = job.shape.sharing.get("host", ())
        if (
            hosts
            and hosts[judgement.rank] in self._crowded
            and (self._contended(column, cause) or (mates and cause is Cause.UNKNOWN))
        ):
            refusal = "its host is another job's as well, and it waits there for processors or disks"
            return replace(judgement, cause=cause, evidence=told, refusal=refusal)
        if cause is not Cause.UNKNOWN:
            margin = weighing.bounded(float(weighed.margin[0]), 0.0, 1.0)
            told = (*told, Evidence("log_odds_of_cause", float(weighed.margin[0]), MARGIN, "", str(cause), margin))
        return replace(judgement, cause=cause, evidence=told, confidence=weighing.confidence(told), counters=True)

    def _with_past(self, judgement: Judgement, shape: Shape) -> Judgement:
        """With what earlier verdicts said of the part and its node; which makes no verdict, but one surer."""
        rank = judgement.rank
        past = self._panel.lemons.weight(shape.gpus[rank] if shape.gpus else "", shape.nodes[rank])
        if judgement.cause not in OF_PARTS or not past:
            return judgement
        told = (*judgement.evidence, *past)
        return replace(judgement, evidence=told, confidence=weighing.confidence(told))

    def _persistent(self, watched: Watched, rank: int) -> bool:
        """Whether the alarm rests on enough slow windows to be no accident, and on enough time to say where it went."""
        interval = watched.interval(rank)
        slow = slow_windows(interval, rank) if interval else []
        if not slow:
            return False
        if self._timed and interval[-1].window.first_ns - interval[0].window.first_ns < ATTRIBUTION_NS:
            return False
        return len(slow) >= (LEAST_HITS_STOPPED if stopped_again(interval, rank) else LEAST_HITS)

    def _contended(self, column: int, cause: Cause) -> bool:
        """Whether what the rank waits for is something that another job on its host takes."""
        if cause in (Cause.CPU_CONTENTION, Cause.STORAGE):
            return True
        rows = [FEATURE[name] for name in ("cpu_waiting", "runqueue_wait", "io_waiting")]
        sigmas = self._panel.level[rows, column] / self._panel.scale[rows, column]
        return cause is Cause.UNKNOWN and bool((np.nan_to_num(sigmas) >= HIT_SIGMAS).any())

    def _mates(self, watched: Watched, rank: int) -> tuple[int, ...]:
        """The other alarmed ranks of the node."""
        same = watched.where.index == watched.where.index[rank]
        return tuple(r for r in np.flatnonzero(same & (watched.score >= ALARM)).tolist() if r != rank)

    def _case(self, watched: Watched, baseline: Baseline, rank: int, alarmed: list[int], job: JobTelemetry) -> Case:
        return Case(
            rank=rank,
            ranks=watched.ranks,
            where=watched.where,
            interval=watched.interval(rank),
            baseline=baseline,
            best_step_seconds=watched.best_step_seconds,
            alarmed=frozenset(alarmed),
            unrest=spread_of_others(np.array(watched.shifts), rank),
            shared_machine=job.shared_machine is not None and bool(job.shared_machine[rank]),
            switches=self._switches,
        )

    def _verdict(self, name: str, watched: Watched, judgement: Judgement, job: JobTelemetry) -> list[Finding]:
        rank = judgement.rank
        standing = watched.standing.get(rank)
        interval = watched.interval(rank)
        if standing is None:
            seen_ns = interval[-1].window.first_ns - interval[0].window.first_ns
            if judgement.counters and judgement.cause is Cause.UNKNOWN and seen_ns < CAUSE_NS:
                return []
            first_ns = interval[0].window.first_ns
            verdict_id = f"{name}.{watched.attempt}.{watched.ranks[rank]}.{first_ns}"
            self._panel.accused.add((name, watched.attempt, watched.ranks[rank]))
            standing = watched.standing[rank] = Standing(verdict_id, first_ns, judgement.confidence)
            if judgement.cause in OF_PARTS:
                gpu, node = job.shape.gpus[rank] if job.shape.gpus else "", job.shape.nodes[rank]
                self._panel.lemons.remember(gpu, node, judgement.cause, first_ns)
        elif standing.told_confidence < ACTING_CONFIDENCE <= judgement.confidence:
            standing.told_confidence = judgement.confidence
        else:
            return []
        return [
            Verdict(
                verdict_id=standing.verdict_id,
                kind=Kind.STRAGGLER,
                gang=name,
                attempt=watched.attempt,
                rank=watched.ranks[rank],
                node=watched.where.names[watched.where.index[rank]],
                cause=judgement.cause,
                confidence=judgement.confidence,
                slowdown=judgement.slowdown,
                step_seconds_before=_before(watched, len(interval)),
                step_seconds_now=judgement.step_seconds,
                first_wall_ns=standing.first_ns,
                last_wall_ns=interval[-1].window.last_ns,
                evidence=judgement.evidence,
                frames=job.frames,
                detector=self.name,
                **_place(job.shape, rank, judgement.cause, self._mates(watched, rank)),
                first_step=_onset(interval, rank).first_step,
                last_step=interval[-1].window.last_step,
                detected_step=interval[-1].window.last_step,
            )
        ]

    def _abstention(self, name: str, watched: Watched, judgement: Judgement) -> Abstention:
        return Abstention(
            name,
            watched.attempt,
            watched.ranks[judgement.rank],
            watched.history[-1].window.last_ns,
            judgement.refusal,
            judgement.evidence,
            self.name,
        )

    def _cleared(self, name: str, watched: Watched, window: Window) -> list[Finding]:
        if not watched.standing:
            return []
        newest = np.array([judged.sigmas for judged in list(watched.history)[-CLEAR_WINDOWS:]])
        if len(newest) < CLEAR_WINDOWS:
            return []
        paced = (newest < HIT_SIGMAS).all(axis=0) & (newest.mean(axis=0) < ALLOWANCE_SIGMAS)
        over = [rank for rank in watched.standing if paced[rank]]
        watched.score[over] = 0.0
        self._panel.accused -= {(name, watched.attempt, watched.ranks[rank]) for rank in over}
        watched.since[over] = -1
        reason = f"the rank kept pace with its peers and its past for {CLEAR_WINDOWS} windows"
        return [
            Cleared(watched.standing.pop(rank).verdict_id, name, window.last_ns, reason, _last_slow(watched, rank))
            for rank in over
        ]

    def _whole_gang(self, name: str, watched: Watched, baseline: Baseline, alarmed: bool) -> list[Finding]:
        """Slow without anybody standing out, or with waits unknown: told once an episode; and the episode's end."""
        window = watched.history[-1].window
        slower = window.step_seconds / min(baseline.step_seconds, watched.best_step_seconds)
        calm = slower < LEAST_SLOWDOWN and not (watched.score >= UNEASY_SCORE).any() and not watched.standing
        watched.calm_windows = watched.calm_windows + 1 if calm else 0
        if watched.calm_windows >= CALM_WINDOWS:
            watched.told.clear()
        watched.slow_windows = watched.slow_windows + 1 if slower >= GANG_SLOWDOWN else 0
        if (
            alarmed
            or watched.standing
            or -1 in watched.told
            or watched.slow_windows < (GANG_WINDOWS if self._timed else GANG_STEPS)
        ):
            return []
        watched.told.add(-1)
        why = "no rank stands out: the workload or the machine"
        if not (window.known and baseline.known):
            why = "waits in collectives are unknown"
        reason = f"steps take {slower:.3g} times as long as at their best and {why}"
        return [Abstention(name, watched.attempt, None, window.last_ns, reason, (), self.name)]


def _given_usual_work(windows: list[Window], work: Work | None) -> list[Window]:
    """The windows of the warm-up as later ones are cut: had all ranks been given their usual work."""
    if work is None:
        return windows
    return [replace(w, compute=w.compute / work.factor(w.tokens, w.squares)) for w in windows]


def _place(shape: Shape, rank: int, cause: Cause, mates: tuple[int, ...]) -> dict[str, Any]:
    """What is accused, and what else it could be: the GPU, its NIC, or the node where several of its ranks are slow."""
    node, gpu = shape.nodes[rank], shape.gpus[rank] if shape.gpus else ""
    nic = shape.nics[rank] if shape.nics else ""
    places = [("gpu", gpu), ("nic", nic), ("node", node)]
    if cause in OF_NIC:
        places = [("nic", nic), ("gpu", gpu), ("node", node)]
    elif mates or cause in OF_HOST:
        places = [("node", node), ("gpu", gpu), ("nic", nic)]
    known = [(level, name) for level, name in places if name]
    level, device = known[0] if known else ("", "")
    return {
        "level": level,
        "device": "" if level == "node" else device,
        "suspects": tuple(f"{other}:{name}" for other, name in known[1:]),
        "ranks": tuple(shape.ranks[[rank, *mates]].tolist()) if mates else (),
    }


def _onset(interval: list[Judged], rank: int) -> Window:
    """The window in which the slowness most likely began: an earlier chance excess can have kept the sum from zero.

    The likeliest beginning of a shift is where the excess over half of it, summed up to the end, is largest.
    """
    sigmas = np.array([min(judged.sigmas[rank], CLIP_SIGMAS) for judged in interval])
    newest = float(np.median(sigmas[-LEAST_HITS:]))
    to_the_end = np.cumsum((sigmas - newest / 2)[::-1])[::-1]
    return interval[int(to_the_end.argmax())].window


def _last_slow(watched: Watched, rank: int) -> int:
    """The last step of the newest window in which the rank was slow; -1 where none is remembered."""
    slow = (judged.window.last_step for judged in reversed(watched.history) if judged.sigmas[rank] >= HIT_SIGMAS)
    return next(slow, -1)


def _before(watched: Watched, interval: int) -> float:
    """Mean step time of the gang in the windows before the alarm's interval, or in warm-up where there are too few."""
    past = [judged.window for judged in list(watched.history)[:-interval]][-16:]
    if len(past) >= 3:
        return float(join(past, "step_seconds"))
    return watched.baseline.step_seconds if watched.baseline is not None else float("nan")


def _too_weak(judgement: Judgement) -> Judgement:
    return replace(judgement, refusal=f"the evidence is too weak: confidence {judgement.confidence:.2f}")
