"""Notices for settings that have no effect because of another setting. Each names the change that helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from agent.schema.errors import ConfigError
from gangwatch.cli import cli
from gangwatch.configuration.config_file import Config, load
from gangwatch.configuration.in_force import InForce, write_in_force
from gangwatch.configuration.notices import finding, finding_of, notices
from gangwatch.state_folder import ControllerRecord, StateFolder, this_process, write_atomically
from scheduler_feedback.core.state import Cell, Mode, Order, Policy, Queue, Sharing, Sizes, TypeQuotas

OWNER, GUEST = Queue("owner", quota=4), Queue("guest", quota=4)


@pytest.mark.parametrize("order", [order for order in Order if order is not Order.FAIR])
def test_a_notice_names_quota_and_weight_under_orders_that_ignore_them(order: Order) -> None:
    policy = Policy(order=order, preempt=True, queues=(OWNER, GUEST, Queue("heavy", weight=2.0)))
    quota, weight = notices(policy, 1)
    assert quota.startswith("policy.queues: owner, guest: 'quota' has no effect") and f'"{order.value}"' in quota
    assert weight.startswith("policy.queues: heavy: 'weight' has no effect")
    assert finding(policy, 1).state == "limited"


TRADED = Policy(order=Order.FAIR, preempt=True, queues=(OWNER,), type_quotas=TypeQuotas.TRADED)


def test_a_notice_names_a_quota_without_preemption_under_the_fair_order() -> None:
    policy = Policy(order=Order.FAIR, preempt=False, queues=(OWNER,))
    (only,) = notices(policy, 1)
    assert "owner" in only and "policy.preempt = true" in only
    assert notices(replace(policy, preempt=True), 1) == ()
    assert finding(replace(policy, preempt=True), 1).state == "found"


def test_settings_that_every_order_follows_give_no_notice() -> None:
    """A limit applies under every scheduling order, and so does a quota if its queue may not borrow."""
    queues = (Queue("small", limit=2), Queue("own", quota=2, borrow=False), Queue("plain"))
    assert notices(Policy(queues=queues), 1) == ()


def test_a_notice_names_quotas_by_type_without_what_they_need() -> None:
    assert notices(TRADED, 1) == ()
    for policy in (Policy(type_quotas=TypeQuotas.OWN), replace(TRADED, queues=())):
        (only,) = notices(policy, 1)
        assert only.startswith("policy.type_quotas:") and "has no effect" in only and "policy.preempt = true" in only


def test_a_notice_names_rails_without_a_cost_of_uplinks() -> None:
    (only,) = notices(Policy(uplink_rails=8), 1)
    assert only == "policy.uplink_rails: no effect, because uplinks cost nothing; set policy.uplink_slowdown = 0.1"
    assert notices(Policy(uplink_rails=8, uplink_slowdown=0.2), 1) == ()


def test_quotas_by_type_on_two_levels_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "gangwatch.toml"
    file.write_text(
        "[policy]\ntype_quotas = 'traded'\n[[policy.queues]]\nname = 'all'\nquota = 4\n"
        "[[policy.queues]]\nname = 'a'\nparent = 'all'\nquota = 2\n"
    )
    found = CliRunner().invoke(cli, ["config", "--state", str(tmp_path / "state"), "--config", str(file)])
    assert found.exit_code != 0
    assert "policy.type_quotas: queue a and its parent all both have a quota" in str(found.exception)
    file.write_text("[policy]\ntype_quotas = 'each'\n")
    found = CliRunner().invoke(cli, ["config", "--state", str(tmp_path / "state"), "--config", str(file)])
    assert "policy.type_quotas: expected 'alike' or 'own' or 'traded', not 'each'" in str(found.exception)


def test_a_notice_names_sharing_on_slots_that_hold_one_job() -> None:
    (only,) = notices(Policy(sharing=Sharing.MUXFLOW), 1)
    assert only.startswith('policy.sharing: "muxflow" has no effect') and "cluster.jobs_per_slot = 2" in only
    assert notices(Policy(sharing=Sharing.MUXFLOW), 2) == notices(Policy(), 1) == ()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(sharing=Sharing.GANDIVA), "policy.sharing: no effect: Slurm starts the jobs"),
        (Policy(sizes=Sizes.SPEEDUP), "policy.sizes: no effect: a Slurm job has a fixed number of ranks"),
        (Policy(queues=(Queue("a", cells={Cell.NODE: 1}), Queue("b"))), "policy.queues: a: 'cells' have no effect"),
        (TRADED, "policy.type_quotas: no effect: Slurm chooses the nodes"),
    ],
)
def test_what_slurm_cannot_express_is_said_once_and_is_no_error(policy: Policy, words: str) -> None:
    (only,) = notices(policy, 2, slurm=True)
    assert only.startswith(words) and "; set " in only
    assert notices(policy, 2) == ()
    assert finding(policy, 2, slurm=True).state == "limited"


def test_config_and_check_print_the_notices(tmp_path: Path) -> None:
    file = tmp_path / "gangwatch.toml"
    file.write_text("[[policy.queues]]\nname = 'owner'\nquota = 2\n")
    shown = CliRunner().invoke(cli, ["config", "--state", str(tmp_path / "state"), "--config", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "Notice: policy.queues: owner: 'quota' has no effect under order = \"fifo\"" in shown.stderr
    refused = CliRunner().invoke(
        cli, ["check", "--state", str(tmp_path / "state"), "--config", str(file), "--require", "policy"]
    )
    assert refused.exit_code == 1 and "policy (limited)" in str(refused.exception)


def test_check_without_a_file_uses_the_running_controllers_configuration(tmp_path: Path) -> None:
    file, state = tmp_path / "gangwatch.toml", StateFolder(tmp_path / "state")
    file.write_text("[[policy.queues]]\nname = 'owner'\nquota = 2\n")
    state.prepare()
    write_in_force(state, InForce(str(file), {}, load(file)))
    assert finding_of(state, Config(), named=False).state == "found", "no controller runs: its last file does not count"
    process = this_process()
    record = ControllerRecord(process.pid, process.start_time, "http://127.0.0.1:1")
    write_atomically(state.controller_file, msgspec.json.encode(record))
    assert finding_of(state, Config(), named=False).state == "limited"
    assert finding_of(state, Config(), named=True).state == "found", "the named file counts"
    state.config_file.write_text("{")
    damaged = finding_of(state, Config(), named=False)
    assert damaged.state == "limited" and "config.json" in damaged.detail and damaged.remedy


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("", None),
        ("preempt = true", "policy.preempt: queues with cells decide which jobs are stopped; set preempt = false"),
        ('sharing = "gandiva"', 'policy.sharing: jobs do not share slots if a queue has cells; set sharing = "none"'),
        ('sizes = "speedup"', 'policy.sizes: a gang keeps its size if a queue has cells; set sizes = "idle"'),
        ('backfill = "conservative"', 'policy.backfill: not possible if a queue has cells; use "easy", "greedy"'),
        ("[[policy.queues]]\nname = 'b'\nparent = 'a'\ncells = { gpu = 1 }", "its parent queue a has cells, too"),
        (
            "[[policy.queues]]\nname = 'b'\ncells = { pair = 0 }",
            "b: cells.pair: expected a whole number from 1 to",
        ),
        ("[[policy.queues]]\nname = 'b'\ncells = { shelf = 1 }", "'shelf'"),
        ("[[policy.queues]]\nname = 'b'\ncells = { node = 1.5 }", "expected a whole number"),
    ],
)
def test_settings_that_contradict_cells_are_refused(tmp_path: Path, policy: str, wrong: str | None) -> None:
    file = tmp_path / "gangwatch.toml"
    file.write_text(f"[policy]\n{policy}\n[[policy.queues]]\nname = 'a'\ncells = {{ node = 3, quad = 1 }}\n")
    if wrong is None:
        assert load(file).policy.queues[0].cells == {Cell.NODE: 3, Cell.QUAD: 1}
        return
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert wrong in str(refused.value)


def test_time_shifts_in_mode_observe() -> None:
    (only,) = notices(Policy(time_shifts=True, mode=Mode.OBSERVE), 1)
    assert "policy.time_shifts: no step is delayed in mode observe" in only
    assert notices(Policy(time_shifts=True), 1) == ()


def test_a_power_budget_whose_agents_may_set_no_limits() -> None:
    (only,) = notices(Policy(power_budget_watts=1000.0), 1, sets_power=False)
    assert "agents may set none; set agent.power_limits" in only
    assert notices(Policy(power_budget_watts=1000.0), 1) == notices(Policy(), 1, sets_power=False) == ()
    assert notices(Policy(power_budget_watts=1000.0), 1, slurm=True, sets_power=False) == (), "other nodes' agents"


def test_instances_need_divided_gpus_and_time_shifts_need_certificates() -> None:
    (only,) = notices(Policy(mig=True), 1, divides=False)
    assert only.startswith("policy.mig: no effect") and "cluster.mig = true" in only
    (only,) = notices(Policy(time_shifts=True), 1, certified=False)
    assert only.startswith("policy.time_shifts: agents without certificates") and "agent.web_config" in only
    assert notices(Policy(mig=True, time_shifts=True), 1) == notices(Policy(), 1, divides=False, certified=False) == ()
