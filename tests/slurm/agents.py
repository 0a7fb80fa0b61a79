"""Program that runs the agents of many nodes of the test Slurm cluster in one process.

    agents.py STATE_FOLDER NODE...

Each node has the agent's own node, collectors and server. One process a node would need thirty times the memory and
start-up time. Only the collectors of hardware that this machine lacks are missing. Slurm's step daemons attest ranks
and their processes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from agent.collectors.host.rank_processes import ProcessCollector
from agent.collectors.steps.step_collector import StepCollector
from agent.node import Node
from agent.rank_attribution import Attribution
from exporter.prometheus.exposition import Settings
from exporter.publisher import Publisher
from gangwatch.state_folder import AgentRecord, StateFolder, this_process, write_atomically


def main() -> None:
    state, names = StateFolder(Path(sys.argv[1])), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    state.prepare()
    running: list[tuple[Node, Publisher]] = []
    for name in names:
        attribution = Attribution(None)
        socket_path = state.socket_path(name)
        steps = StepCollector(str(socket_path), attribution, interval_seconds=0.5)
        node = Node(name, [steps, ProcessCollector(attribution)], interval_seconds=1.0)
        publisher = Publisher(node, "127.0.0.1", 0, None, Settings(), {})
        node.start()
        publisher.start()
        this = this_process()
        record = AgentRecord(this.pid, this.start_time, name, publisher.url, str(socket_path), 8, (), node.boot_id)
        write_atomically(state.agent_file(name), msgspec.json.encode(record))
        running.append((node, publisher))
    write_atomically(state.path / "agents-ready", str(os.getpid()).encode())
    signal.sigwait({signal.SIGTERM})
    for node, publisher in running:
        publisher.stop()
        node.stop()


if __name__ == "__main__":
    main()
