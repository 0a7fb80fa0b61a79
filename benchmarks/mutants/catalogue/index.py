"""Mutants of the scheduling index: methods that change the state without updating the index."""

from benchmarks.mutants.mutant import Mutant

_INDEX = ("tests/policies/test_scheduling_index.py",)


def _forgets(method: str, update: str, instead: str = "pass") -> Mutant:
    return Mutant(f"policies.index.scheduling_index:SchedulingIndex.{method}", update, instead, _INDEX)


MUTANTS = (
    _forgets("set_policy", "TrackedJobs.__init__(self, self.state)", "self.policy = policy"),
    _forgets("_verdict_changed", "self.congestion_changed()"),
    _forgets("_verdict_changed", "self.update_expected_end(job)"),
    _forgets("report_node", "self._topology_changed()"),
    _forgets("_topology_changed", "self.plan_or_none = None"),
    _forgets("report_node", "self._node_changed(node)"),
    _forgets("set_node_state", "self._node_changed(node)"),
    _forgets("set_until", "self._node_changed(node)"),
    _forgets("set_slowdown", "self._node_changed(node)"),
    _forgets("set_spare", "self._node_changed(node)"),
    _forgets("remove_node", "self.doubtful.discard(node.name)"),
    _forgets("remove_node", "self._topology_changed()"),
    _forgets("_allow", "self._update(job)"),
    _forgets("add_job", "self._add(job)"),
    _forgets("set_overdue", "self._update(job)"),
    _forgets("appraise", "self._update(job)"),
    _forgets("demote", "self._expect_fall(job)"),
    _forgets("take_turns", "self._update(job)"),
    _forgets("reserve", "self._update(job)"),
    _forgets("start", "self._update(job)"),
    _forgets("run", "self._update(job)"),
    _forgets("run_external", "self.ended = [one for one in self.ended if one[1] != job.job_id]"),
    _forgets("report_progress", "self.update_expected_end(job)"),
    _forgets("_note_stopping", "self.stopping.add(job.job_id)"),
    _forgets("_note_stopping", "heappush(self.timeouts, (job.not_before_ns, job.job_id))"),
    _forgets("_note_stopping", "self.running.discard(job.job_id)"),
    _forgets("cancel", "self._update(job)"),
    _forgets("move", "self._update(job)"),
    _forgets("repeat_stop", "self._note_stopping(job)"),
    _forgets("requeue", "self._update(job)"),
    _forgets("end", "self._update(job)"),
    _forgets("forget_ended", "self.ended[:extra] = needed"),
)
