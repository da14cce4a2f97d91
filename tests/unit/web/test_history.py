"""The history of the journal for the page and the metrics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import snapshots, valid_plans
from web_journals import (
    NOW_S,
    ROUND_S,
    Tree,
    a_blind_line,
    a_job,
    a_line,
    an_action,
    gang,
)

from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.actions import Outcome, Status
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.journal import as_line
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.metrics import Segment, segments
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.web.history import MAX_ROUNDS, JournalView


def of(*lines: Tree) -> JournalView:
    """Return the history of these rounds."""
    history = JournalView()
    for line in lines:
        history.add(line)
    return history


def bars(history: JournalView) -> list[tuple[str, str, float, float]]:
    """Return each bar as job, gang, start and end, in rounds since NOW_S."""
    return [
        (str(b.job_id), str(b.gang), (b.start_s - NOW_S) / ROUND_S, (b.end_s - NOW_S) / ROUND_S)
        for b in history.bars()
    ]


def test_a_job_that_is_started_holds_its_gang_until_it_ends() -> None:
    """A successful start begins a bar, the job's end time ends it."""
    history = of(
        a_line(0, {"1": a_job()}, actions=[an_action("start", "1", "n1:V100:2")]),
        a_line(1, {"1": a_job("n1:V100:2", gpus=2)}),
        a_line(2, ended={"1": {"phase": "done", "end_s": NOW_S + 1.5 * ROUND_S}}),
    )
    assert bars(history) == [("1", "n1:V100:2", 0.0, 1.5)]
    assert history.now.gpus["V100"] == (2, 0, 0, 0)


def test_a_bar_under_way_ends_at_the_last_round() -> None:
    """A bar of a running job starts at the first line read and ends at the last round."""
    history = of(a_line(0, {"1": a_job("n1:V100:1")}), a_line(3, {"1": a_job("n1:V100:1")}))
    assert bars(history) == [("1", "n1:V100:1", 0.0, 3.0)]
    assert history.now.gpus["V100"].held == 1
    assert history.now.gpus["V100"].idle == 1


def test_a_move_ends_one_bar_and_begins_another() -> None:
    """A job that is stopped and started on other GPUs has two bars."""
    history = of(
        a_line(0, {"1": a_job("n1:V100:1")}),
        a_line(
            1,
            {"1": a_job("n1:V100:1")},
            actions=[an_action("stop", "1", "n1:V100:1"), an_action("start", "1", "n2:K80:1")],
        ),
        a_line(2, {"1": a_job("n2:K80:1")}),
    )
    assert bars(history) == [("1", "n1:V100:1", 0.0, 1.0), ("1", "n2:K80:1", 1.0, 2.0)]


def test_a_start_that_was_not_done_holds_nothing() -> None:
    """Deferred, refused and skipped starts create no bars."""
    starts = [an_action("start", "1", "n1:V100:1", s) for s in ("deferred", "refused", "skipped")]
    assert bars(of(a_line(0, {"1": a_job()}, actions=starts))) == []


def test_a_job_that_is_gone_holds_nothing() -> None:
    """A job that disappears without an end has a bar up to that round."""
    history = of(a_line(0, {"1": a_job("n1:V100:1")}), a_line(2))
    assert bars(history) == [("1", "n1:V100:1", 0.0, 2.0)]
    assert history.now.gpus["V100"].held == 0


def test_a_round_that_saw_nothing_changes_nothing_but_the_rounds() -> None:
    """When Slurm does not answer, jobs keep their GPUs."""
    history = of(a_line(0, {"1": a_job("n1:V100:1")}), a_blind_line(1))
    assert len(history.now.jobs) == 1
    assert history.now.gpus["V100"].held == 1
    assert history.now.seen_s == NOW_S
    assert history.now.time_s == NOW_S + ROUND_S
    assert history.rounds[-1].errors == ("squeue: timed out",)


def test_copies_are_bars_of_their_own() -> None:
    """Each copy of a forked job has a bar."""
    holds = {"0": gang("n1:V100:1"), "2": gang("n2:K80:2")}
    history = of(a_line(0, {"1": a_job("n1:V100:1") | {"holds": holds}}))
    assert [(b.copy, str(b.gang)) for b in history.bars()] == [(0, "n1:V100:1"), (2, "n2:K80:2")]
    assert history.now.copies == {"running": 2}


def test_gpus_are_held_by_others_closed_or_idle() -> None:
    """Every GPU is in one state; idle GPUs of closed nodes count as closed."""
    nodes = {
        "n1": {"gpus": {"V100": 4}, "open": True},
        "n2": {"gpus": {"V100": 4}, "open": False},
    }
    line = a_line(0, {"1": a_job("n1:V100:1")}) | {"nodes": nodes, "occupied": gang("n2:V100:1")}
    assert of(line).now.gpus["V100"] == (8, 1, 1, 3)
    assert of(line).now.gpus["V100"].idle == 3


def test_modes_are_taken_together() -> None:
    """With two modes, each line has the other mode's jobs as occupied GPUs."""
    enforced = a_line(0, {"1": a_job("n1:V100:1")}, occupied=gang("n1:V100:1 n2:K80:1"))
    observed = a_line(0, {"2": a_job("n1:V100:1")}, mode="observe", occupied=gang("n1:V100:1"))
    observed["occupied"] = gang("n1:V100:1 n2:K80:1")
    history = of(enforced, observed)
    assert set(history.now.jobs) == {"1", "2"}
    assert history.now.modes == ("hold", "observe")
    assert history.now.gpus["V100"] == (2, 2, 0, 0)
    assert history.now.gpus["K80"] == (2, 0, 1, 0)


def test_a_mode_that_is_no_longer_in_use_is_forgotten() -> None:
    """Jobs of a mode that is no longer configured are removed."""
    history = of(
        a_line(0, {"1": a_job("n1:V100:1")}, mode="observe"),
        *(a_line(n, {"1": a_job("n1:V100:1")}) for n in range(1, 9)),
    )
    assert history.now.modes == ("hold",)
    assert bars(history) == [("1", "n1:V100:1", 1.0, 8.0), ("1", "n1:V100:1", 0.0, 0.0)]


def test_another_simulation_in_the_same_file_begins_anew() -> None:
    """A large step back in time starts a new history."""
    history = of(a_line(90, {"1": a_job("n1:V100:1")}, mode=""), a_line(0, {"7": a_job()}, mode=""))
    assert set(history.now.jobs) == {"7"}
    assert list(history.bars()) == []
    assert history.begins_s == 0.0
    assert not history.is_epoch


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"version": 2},
        [],
        a_line() | {"jobs": {"1": 3}},
        a_line() | {"time_s": "noon"},
        a_line() | {"time_s": float("nan")},
        a_line() | {"time_s": 1e300},
        a_line() | {"nodes": {"n1": None}},
        a_line() | {"nodes": {"n1": {"gpus": {"V100": "2"}, "open": True}}},
        a_line() | {"jobs": {"1": {"holds": {}}}},
    ],
)
def test_a_strange_line_is_counted_and_left_out(strange: object) -> None:
    """Lines of another version and damaged lines are skipped."""
    history = of(a_line(0, {"1": a_job("n1:V100:1")}))
    history.add(strange)  # type: ignore[arg-type]
    history.add(a_line(1, {"1": a_job("n1:V100:1")}))
    assert history.strange == 1
    assert history.now.gpus["V100"].held == 1


def test_memory_is_bounded() -> None:
    """The numbers of bars and rounds are limited; the oldest are dropped."""
    history = JournalView(max_bars=400)
    for number in range(1000):
        ended = {str(number - 1): {"phase": "done", "end_s": NOW_S + number * ROUND_S}}
        history.add(
            a_line(number, {str(number): a_job("n1:V100:1", workload=f"w{number}")}, ended=ended)
        )
    assert len(history.rounds) == MAX_ROUNDS
    assert len(list(history.bars())) <= 401
    assert len(history.labels) <= 401
    assert history.begins_s > NOW_S
    assert min(b.start_s for b in history.bars()) >= history.begins_s - ROUND_S


def test_the_share_held_counts_time() -> None:
    """A type held for one of four rounds was held for a quarter of the time."""
    history = of(
        a_line(0, {"1": a_job("n1:V100:2")}),
        a_line(1),
        a_line(4),
    )
    assert history.held_share("V100", NOW_S, NOW_S + 4 * ROUND_S) == pytest.approx(0.25)
    assert history.held_share("V100", NOW_S + 2 * ROUND_S, NOW_S + 4 * ROUND_S) == 0.0
    assert history.held_share("T4", NOW_S, NOW_S + ROUND_S) is None


@given(snapshot=snapshots(), data=st.data())
def test_whatever_hadard_writes_is_taken_in(snapshot: Snapshot, data: st.DataObject) -> None:
    """Every line of hadard's is valid, and the GPUs of each type add up."""
    plan = data.draw(valid_plans(snapshot))
    statuses = st.sampled_from(list(Status))
    outcomes = [Outcome(action, data.draw(statuses)) for action in reconcile(snapshot, plan)]
    record = RoundRecord(Round(3, snapshot.now_s, 360.0), "change", "p", snapshot, plan, outcomes)
    history = JournalView()
    assert history.add(json.loads(json.dumps(as_line(record))))
    assert set(history.now.jobs) == set(snapshot.by_id)
    for gpu_type, total in snapshot.cluster.gpus_by_type.items():
        gpus = history.now.gpus[gpu_type]
        assert gpus.total == total
        assert gpus.held + gpus.others + gpus.closed + gpus.idle == total


def _gpu_hours(held: Iterable[Segment]) -> dict[str, float]:
    used: Counter[str] = Counter()
    for segment in held:
        for gpu_type, count in segment.gang.gpus_by_type.items():
            used[gpu_type] += count * (segment.end_s - segment.start_s) / 3600
    return {gpu_type: round(hours, 6) for gpu_type, hours in sorted(used.items())}


def test_bars_are_the_segments_that_metrics_find() -> None:
    """For a simulation with moves, the bars agree with the run's segments."""
    table_file = data_file("throughputs.json")
    table = parse_table(table_file.read_text(encoding="utf-8"), str(table_file))
    line = "LM (batch size 80)\t\t\t\t0\t90000\t{gang}\t1\t-1\t{arrival}"
    trace = [line.format(gang=1 + i % 2, arrival=100 * i) for i in range(16)]
    world = SimBackend(
        parse_cluster("2xV100,4xK80", gpus_per_node=2), parse_gavel_trace(trace, table, "page")
    )
    lines: list[Tree] = []
    run_rounds(
        world,
        make_policy("gavel-max-min"),
        lambda record: lines.append(as_line(record)),
        length_s=60,
        now_s=lambda: world.now_s,
        clock=lambda: 0.0,
        max_rounds=5000,
    )
    history = of(*lines)
    assert world.num_unfinished == 0
    assert history.strange == 0
    assert any(action["do"] == "stop" for each in lines for action in each["actions"])
    assert _gpu_hours(history.bars()) == _gpu_hours(segments(lines))
