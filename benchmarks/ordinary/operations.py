"""Operations on a test day: an operator cancels jobs, closes nodes and queues, and changes policies."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.ordinary.oracle.facts import HOLDING
from benchmarks.ordinary.person import Activity, Person, check_said


class Operator(Person):
    """A user who operates the cluster and may cancel all jobs."""

    def _operations(self) -> list[tuple[str, float, Activity]]:
        return [
            ("cancel", 1.0, self._cancel_any),
            ("cancel_waiting", 0.5, self._cancel_waiting),
            ("maintenance", 0.3, lambda: self._node("maintenance")),
            ("quarantine", 0.3, lambda: self._node("quarantine")),
            ("freeze", 0.25, self._freeze),
            ("reload", 0.4, self._reload),
            ("reload_refused", 0.2, self._reload_refused),
            ("hold", 0.3, self._hold),
            ("rest", 0.3, lambda: self._rest(self.random.uniform(5, 15))),
        ]

    def cancel(self, job: str, kind: str = "") -> None:
        if kind:
            self.done[kind] += 1
        if self.random.random() < 0.3:

            def ask() -> None:
                check_said(self.cluster.command("cancel", job))
        else:

            def ask() -> None:
                self.cluster.ask("POST", f"/api/jobs/{job}/cancel", {"by": "ordinary"})

        self.command("cancel", job, ask)

    def _cancel_any(self) -> None:
        if jobs := self.mine(*HOLDING):
            self.cancel(self.random.choice(jobs))

    def _cancel_waiting(self) -> None:
        if jobs := self.mine("pending"):
            self.cancel(self.random.choice(jobs), "cancel_waiting")

    def _node(self, word: str) -> None:
        nodes = self.facts.reading.nodes if self.facts.reading is not None else {}
        healthy = [name for name, node in nodes.items() if node["state"] == "healthy"]
        if len(healthy) < 2:
            return
        node = self.random.choice(healthy)
        self.operate(word, node)
        self.later(self.random.uniform(4, 20), lambda: self.operate("release", node))

    def operate(self, word: str, node: str) -> None:
        """Send an operator's command about a node, by command line or API."""
        if self.random.random() < 0.5:
            self.command(word, node, lambda: check_said(self.cluster.command("node", word, node, "--reason", "a day")))
        else:
            body = {"by": "ordinary", "reason": "a day"}
            self.command(word, node, lambda: self._post(f"/api/nodes/{node}/{word}", body))

    def _freeze(self) -> None:
        last = self.facts.took(("freeze", "thaw"))
        if last and last[-1].word == "freeze":
            return
        self.command("freeze", "", lambda: check_said(self.cluster.command("freeze")))
        self.later(self.random.uniform(2, 9), self.thaw)

    def thaw(self) -> None:
        self.command("thaw", "", lambda: self._post("/api/thaw", {"by": "ordinary"}))

    def configure(self, policy: dict[str, Any], kind: str) -> None:
        """Write a different policy and make the controller load it."""
        self.inbox.policy_changes()
        self.cluster.write_config(policy)
        if self.random.random() < 0.5:
            self.command("reload", "", lambda: check_said(self.cluster.command("reload")))
        else:
            self.command("reload", "", lambda: self._post("/api/reload", {"by": "ordinary"}))
        self.done[kind] += 1
        self.inbox.policy_changed(policy)

    def _reload(self) -> None:
        policy = dict(self.cluster.config)
        policy["min_run_seconds"] = float(self.random.choice([0, 2, 5, 10]))
        policy["backfill"] = self.random.choice(["easy", "easy", "conservative", "greedy", "none"])
        self.configure(policy, "reload_policy")

    def _reload_refused(self) -> None:
        """Reload an invalid file. Check that the controller refuses it and changes nothing."""
        with self.cluster.config_lock:
            right = self.cluster.config_file.read_text()
            self.cluster.config_file.write_text(right + "\n[polcy]\norder = 'fifo'\n")
            try:
                said = self.cluster.command("reload")
            finally:
                self.cluster.config_file.write_text(right)
        if said.code not in (1, 2, 3) or "polcy" not in said.err + said.out:
            self.inbox.complaint("reload", "polcy", f"a wrong file was not refused: {said}")
        self.say("reload_refused", said.err.strip()[-120:])

    def _hold(self) -> None:
        """Close a queue for a while, so that its jobs stay pending, and open it again."""
        open_ = [queue for queue in self.cluster.config.get("queues", ()) if queue.get("limit") != 0]
        if len(open_) < len(self.cluster.config.get("queues", ())) or not open_:
            return
        name = self.random.choice([queue["name"] for queue in open_])
        self.configure(self._with_limit(name, 0), "hold")
        self.later(self.random.uniform(4, 12), lambda: self.open_queue(name))

    def open_queue(self, name: str) -> None:
        self.configure(self._with_limit(name, None), "unhold")

    def _with_limit(self, name: str, limit: int | None) -> dict[str, Any]:
        queues = [
            queue | {"limit": limit if limit is not None else queue.get("usual")} if queue["name"] == name else queue
            for queue in self.cluster.config["queues"]
        ]
        return self.cluster.config | {"queues": queues}

    def _rest(self, seconds: float) -> None:
        """Wait for `seconds`, unless the day ends before."""
        self.say("rest", f"for {seconds:.0f} s")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopped:
            time.sleep(0.2)
