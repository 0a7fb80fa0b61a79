"""Program that runs AccaSim's EASYBackfilling in a separate environment. It imports nothing of gangwatch.

Standard input: {"nodes", "slots", "jobs": [[id, submit second, run seconds, ranks], ...], "reservation": bool}.
Standard output: {id: second of its start}. AccaSim (Galleguillos, Kiziltan, Netti, Soto, 2020; PyPI accasim 1.1.3, MIT)
was written for Python 3.5, which still had `collections.Mapping`.

reservation: whether the allocator gets the nodes that the scheduler reserves. The published release passes an empty
list (scheduler_class.py line 499), so every job that fits is backfilled and the reservation has no effect. Release
1.0.0 passed the nodes.
"""

import collections
import collections.abc
import contextlib
import io
import json
import sys
import tempfile

collections.Mapping = collections.abc.Mapping

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.event_class import AttributeType, JobFactory  # noqa: E402
from accasim.base.resource_manager_class import ResourceManager, Resources  # noqa: E402
from accasim.base.scheduler_class import EASYBackfilling  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402
from accasim.utils.reader_class import Reader  # noqa: E402

question = json.load(sys.stdin)


class Jobs(Reader):
    def __init__(self, factory):
        super().__init__(factory)
        self._jobs = iter(question["jobs"])

    def _read(self, _now):
        job = next(self._jobs, None)
        if job is None:
            self.stop_submission()
            return None
        job_id, submitted, seconds, ranks = job
        return {
            "job_id": job_id,
            "queued_time": submitted,
            "duration": seconds,
            "expected_duration": seconds,
            "requested_nodes": ranks,
            "requested_resources": {"core": 1},
        }


class Allocator(FirstFit):
    """First-fit allocator. If `reservation` is set, it gets the nodes that the scheduler reserves."""

    def allocating_method(self, es, cur_time, skip=False, reserved_time=None, reserved_nodes=None):
        if question["reservation"] and reserved_time is not None:
            reserved_nodes = scheduler._reserved_slot[1]
        return super().allocating_method(es, cur_time, skip, reserved_time, reserved_nodes)


scheduler = EASYBackfilling(Allocator())
starts = {}
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    manager = ResourceManager(Resources({"node": {"core": question["slots"]}}, {"node": question["nodes"]}))
    factory = JobFactory(manager, job_attrs=[AttributeType("expected_duration", int)])
    simulator = Simulator(
        f"{folder}/jobs",
        None,
        scheduler,
        resource_manager=manager,
        reader=Jobs(factory),
        job_factory=factory,
        scheduling_output=False,
        statistics_output=False,
        show_statistics=False,
        overwrite_previous=False,
        RESULTS_FOLDER_PATH=folder,
    )
    dispatch = simulator.mapper.dispatch_event

    def watched(job, at, passed, nodes):
        done = dispatch(job, at, passed, nodes)
        if done[0] or done[1]:
            starts[job.id] = at
        return done

    simulator.mapper.dispatch_event = watched
    simulator.start_simulation()
json.dump(starts, sys.stdout)
