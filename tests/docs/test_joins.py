"""PromQL joins in the how-to guides, executed by a real Prometheus with series of two pods that share a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.ports import held_port

PAGES = sorted((Path(__file__).parents[2] / "docs" / "how-to").glob("*.md"))
BLOCKS = [block for page in PAGES for block in re.findall(r"```promql\n(.*?)```", page.read_text(), flags=re.DOTALL)]

AT = 1_700_000_000

_A, _B = 'cluster="a", node="n1", gpu="GPU-1"', 'cluster="b", node="n1", gpu="GPU-1"'
SERIES = {
    # Cluster a: two pods share the GPU, each with one process. Cluster b has a GPU of the same name, used by one pod.
    f"gangwatch_gpu_power_watts{{{_A}}}": 300,
    f"gangwatch_gpu_power_watts{{{_B}}}": 500,
    f'gangwatch_gpu_owner_info{{{_A}, namespace="ml", pod="p", container="c", rank="0"}}': 1,
    f'gangwatch_gpu_owner_info{{{_A}, namespace="ml", pod="q", container="c", rank="1"}}': 1,
    f'gangwatch_gpu_owner_info{{{_B}, namespace="ml", pod="r", container="c", rank="0"}}': 1,
    f'gangwatch_gpu_process_memory_used_bytes{{{_A}, mig="", pid="1"}}': 10,
    f'gangwatch_gpu_process_memory_used_bytes{{{_A}, mig="", pid="2"}}': 20,
    f'gangwatch_gpu_process_owner_info{{{_A}, mig="", pid="1", namespace="ml", pod="p", rank="0"}}': 1,
    f'gangwatch_gpu_process_owner_info{{{_A}, mig="", pid="2", namespace="ml", pod="q", rank="1"}}': 1,
    'DCGM_FI_DEV_GPU_UTIL{cluster="b", gpu="0", namespace="ml", pod="r", container="c"}': 90,
    'kube_pod_labels{cluster="b", namespace="ml", pod="r", label_team="vision"}': 1,
    'kube_pod_labels{cluster="a", namespace="ml", pod="r", label_team="speech"}': 1,
}

Answer = dict[tuple[str, ...], float]

EXPECTED: dict[str, Answer] = {
    # First words of the query -> value by (cluster, pod, team).
    "gangwatch_gpu_power_watts": {("a", "p"): 300, ("b", "r"): 500},
    "max by (cluster, node, gpu, namespace, pod)": {("a", "p"): 300, ("a", "q"): 300, ("b", "r"): 500},
    "sum by (cluster, node, gpu, namespace, pod)": {("a", "p"): 10, ("a", "q"): 20},
    "DCGM_FI_DEV_GPU_UTIL": {("b", "r", "vision"): 90},
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Answer]]:
    """Run a Prometheus that contains SERIES. Yield a function that executes a query in it."""
    prometheus, promtool = needs.component("prometheus", "prometheus"), needs.component("promtool", "prometheus")
    folder = tmp_path_factory.mktemp("joins")
    names = sorted({name.partition("{")[0] for name in SERIES})
    lines = [
        line
        for name in names
        for line in (
            f"# TYPE {name} gauge",
            # OpenMetrics has no spaces between labels.
            *(
                f"{series.replace(', ', ',')} {value} {AT}"
                for series, value in SERIES.items()
                if series.startswith(f"{name}{{")
            ),
        )
    ]
    (folder / "series.txt").write_text("\n".join([*lines, "# EOF", ""]))
    (folder / "data").mkdir()
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "series.txt"), str(folder / "data")],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (folder / "prometheus.yml").write_text("global: {}\n")
    address = f"127.0.0.1:{held_port()}"
    process = subprocess.Popen(
        [
            prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def execute(query: str) -> Answer:
        parameters = urllib.parse.urlencode({"query": query, "time": AT + 1})
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/query?{parameters}", timeout=30) as response:
                result = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        labels = [
            tuple(one["metric"][name] for name in ("cluster", "pod", "label_team") if name in one["metric"])
            for one in result
        ]
        return {key: float(one["value"][1]) for key, one in zip(labels, result, strict=True)}

    try:
        until = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < until, "prometheus does not respond"
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready", timeout=2):
                    break
            except OSError:
                time.sleep(0.1)
        yield execute
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.split("\n")[0] for block in BLOCKS])
def test_the_query_works_where_pods_share_a_gpu(ask: Callable[[str], Answer], block: str) -> None:
    (start,) = (start for start in EXPECTED if block.startswith(start))
    assert ask(block) == EXPECTED[start]


def test_every_expected_answer_belongs_to_a_query_of_the_guides() -> None:
    assert len(BLOCKS) == len(EXPECTED)


def test_a_join_that_does_not_select_one_user_fails(ask: Callable[[str], Answer]) -> None:
    """Without `topk` Prometheus must reject the first join; this proves that in the test's data two pods share a
    GPU."""
    owners = "max by (cluster, node, gpu, namespace, pod) (gangwatch_gpu_owner_info)"
    with pytest.raises(AssertionError, match="many-to-many matching not allowed"):
        ask(f"gangwatch_gpu_power_watts * on (cluster, node, gpu) group_left (namespace, pod) {owners}")
