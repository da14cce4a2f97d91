"""Our policies in Sia's simulator: the translation, and the runs.

`tests/fakes/sia` stands for Sia's artifact. HADAR_SIA_ARTIFACT names a real one; its test needs the
simulator's libraries (benchmarks/sia/requirements.txt) too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import InvalidPlan
from hadar_slurm.policies.registry import make_policy

ROOT = Path(__file__).parents[3]
SIA = ROOT / "benchmarks" / "sia"
FAKE = ROOT / "tests" / "fakes" / "sia"
ARTIFACT = os.environ.get("HADAR_SIA_ARTIFACT")
LIBRARIES = ("pandas", "cvxpy", "cvxopt", "autograd", "psutil")
NODES, GPUS = {"fast": 1, "slow": 3}, {"fast": 8, "slow": 4}


@dataclass(frozen=True)
class Info:
    """A job as the simulator shows it; times in seconds."""

    scale_factor: int
    remain_steps: float = 1000.0
    age: float = 360.0
    submission_time: float = 0.0
    rescale_time: float = 50.0
    total_steps: float = 1000.4


def speed(info: Any, gpu_type: str, placement: tuple[int, ...]) -> float:
    """Return steps/s that a second node halves."""
    return {"fast": 4.0, "slow": 1.0}[gpu_type] * sum(placement) / len(placement)


@dataclass
class Watched:
    """A policy that keeps what it was asked."""

    policy: Any
    asked: list[tuple[Snapshot, Round]]
    name: str = "watched"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        self.asked.append((snapshot, round_))
        return self.policy.plan(snapshot, round_)


class Refuses:
    """A policy that forgets all jobs."""

    name = "refuses"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        return Plan.of({}, {})


class Waits:
    """A policy that lets all jobs wait."""

    name = "waits"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        return Plan.of({}, {job.job_id: WaitReason.OUTBID for job in snapshot.jobs})


@pytest.fixture
def translation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that translates."""
    monkeypatch.syspath_prepend(str(SIA))
    import translation

    return translation


class Measured:
    """An application of the simulator: 64 samples/s a GPU, half of that over several nodes."""

    def get_completion_epoch(self, batch: int) -> int:
        return 3

    def get_iteration(self, batch: int, epoch: int) -> float:
        return 1000.4 * epoch

    def get_throughput_with_accum(self, placement: tuple[int, ...], batch: int) -> float:
        return 64.0 * sum(placement) * (0.5 if len(placement) > 1 else 1.0)


def test_a_workload_as_a_trace(translation: ModuleType) -> None:
    """The steps to the last epoch, and measured rates, by which the simulator's jobs are slower."""
    import as_trace

    of_all = {pool.suffix: {"bert": Measured()} for pool in as_trace.POOLS}
    work = as_trace.Work("bert", 128, 8)
    assert work.name == "bert (batch size 128, 8 GPUs)"
    assert as_trace.steps(of_all, work) == 3001
    # On 8 T4s it is over two nodes anyhow.
    assert as_trace.rates(of_all, work, 2.0) == {
        "a100": {"8": [2.0, 1.0]}, "rtx2080ti": {"8": [2.0, 1.0]}, "t4": {"8": [1.0, 1.0]},
    }  # fmt: skip
    # 20 GPUs fit on no type but the RTX2080Ti and the T4, until there are twice the nodes.
    wide = as_trace.Work("bert", 128, 20)
    assert [*as_trace.rates(of_all, wide, 1.0)] == ["rtx2080ti", "t4"]
    assert [*as_trace.rates(of_all, wide, 1.0, 2)] == ["a100", "rtx2080ti", "t4"]


def watched(translation: ModuleType, policy: Any = None) -> tuple[Any, list[Any]]:
    """Return a translation for a policy, and the list of what that is asked."""
    asked: list[tuple[Snapshot, Round]] = []
    policy = Watched(policy or make_policy("srsf"), asked)
    return translation.Translation(policy, NODES, GPUS, 360.0, speed), asked


def test_gangs_on_the_fewest_nodes_and_in_halves(translation: ModuleType) -> None:
    """A gang fills nodes one after the other; the last has the rest."""
    assert translation.packed(12, 8) == (8, 4)
    assert translation.packed(8, 4) == (4, 4)
    assert translation.packed(3, 8) == (3,)
    assert translation.on_two(5) == (3, 2)


def test_a_gang_gets_its_gpus_on_nodes_that_have_them(translation: ModuleType) -> None:
    """All GPUs are of one type, and no node gives more than it has."""
    subject, _ = watched(translation)
    jobs = {f"job-{size}": Info(size) for size in (8, 6, 4, 2)}
    answer = subject.decide(jobs, {})
    used: dict[tuple[str, int], int] = {}
    for name, (gpu_type, nodes) in answer.items():
        assert len(nodes) == jobs[name].scale_factor
        assert nodes == sorted(nodes)
        for node in nodes:
            assert node < NODES[gpu_type]
            used[gpu_type, node] = used.get((gpu_type, node), 0) + 1
    assert all(count <= GPUS[gpu_type] for (gpu_type, _), count in used.items())
    assert len(answer) >= 3  # the gang of 8 may find no room


def test_the_policy_sees_what_gavel_sees(translation: ModuleType) -> None:
    """Steps, throughputs, restart cost, age: each as the simulator shows it."""
    subject, asked = watched(translation)
    jobs: Mapping[str, Info] = {"a-0": Info(6, remain_steps=400.0), "a-1": Info(12)}
    subject.decide(jobs, {})
    (snapshot, round_) = asked[0]
    first, second = (snapshot.by_id[name] for name in ("a-0", "a-1"))
    assert (snapshot.now_s, round_.length_s, round_.may_move) == (360.0, 360.0, True)
    assert (first.spec.num_gpus, first.spec.total_steps, first.steps_left) == (6, 1000, 400.0)
    assert (first.spec.restart_cost_s, first.spec.submitted_s) == (50.0, 0.0)
    assert first.phase is Phase.QUEUED
    rates = first.spec.throughputs
    assert rates.on("fast", 6) == 24.0
    assert rates.on("fast", 6, is_spread=True) == 12.0  # in two halves
    assert rates.on("slow", 6) == rates.on("slow", 6, is_spread=True) == 3.0  # on two nodes anyway
    assert second.spec.throughputs.gpu_types == ("slow",)  # 12 GPUs are more than there are fast


def test_what_a_job_holds_comes_back_to_it(translation: ModuleType) -> None:
    """A running job keeps its very nodes; its service and its restarts are counted by type."""
    subject, asked = watched(translation)
    jobs = {"a-0": Info(4)}
    held = subject.decide(jobs, {})
    later = {"a-0": replace(jobs["a-0"], age=720.0, remain_steps=900.0)}
    assert subject.decide(later, held) == held
    job = asked[1][0].by_id["a-0"]
    assert job.phase is Phase.RUNNING
    assert job.progress.service_by_type == (("fast", 4 * 360.0),)
    assert job.progress.restarts == 0
    assert asked[1][1].index == 1


def test_a_preempted_job_is_queued_and_restarts(translation: ModuleType) -> None:
    """A job that holds nothing, in either form of that, is queued; its next start is a restart."""
    subject, asked = watched(translation)
    held = subject.decide({"a-0": Info(4)}, {})
    for age, nothing in ((720.0, {}), (1080.0, {"a-0": (None, ())})):
        subject.decide({"a-0": Info(4, age=age)}, nothing)
        assert asked[-1][0].by_id["a-0"].phase is Phase.QUEUED
    subject.decide({"a-0": Info(4, age=1440.0)}, held)
    assert asked[-1][0].by_id["a-0"].progress.restarts == 2


def test_a_job_that_has_ended_is_named_once(translation: ModuleType) -> None:
    """The round after the last one of a job names it among the ended."""
    subject, asked = watched(translation)
    subject.decide({"a-0": Info(4), "a-1": Info(2)}, {})
    for age in (720.0, 1080.0):
        subject.decide({"a-1": Info(2, age=age)}, {})
    assert [[end.job_id for end in snapshot.ended] for snapshot, _ in asked] == [[], ["a-0"], []]


def test_waiting_jobs_are_absent_from_the_answer(translation: ModuleType) -> None:
    """The simulator takes a job that is not in the answer off its GPUs."""
    subject, _ = watched(translation, Waits())
    assert subject.decide({"a-0": Info(4)}, {"a-0": ("slow", [1, 1, 1, 1])}) == {}


def test_a_plan_that_breaks_a_rule_ends_the_run(translation: ModuleType) -> None:
    """No figure is recorded of a policy whose plan does not fit."""
    subject, _ = watched(translation, Refuses())
    with pytest.raises(InvalidPlan):
        subject.decide({"a-0": Info(4)}, {})


def compare(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script on the artifact's stand-in, in a process of its own as it imports that."""
    command = [sys.executable, str(SIA / "side_by_side.py"), *words]
    command += ["--runs", str(tmp_path / "runs.jsonl"), "--page", str(tmp_path / "README.md")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )


def test_runs_are_recorded_and_not_repeated(tmp_path: Path) -> None:
    """Each run is a line; a second call makes those only that are missing, and keeps the lines."""
    words = [str(FAKE), "--workloads", "saturn-1", "--schedulers"]
    first = compare(tmp_path, *words, "hadar,gavel")
    assert first.returncode == 0, first.stderr
    path = tmp_path / "runs.jsonl"
    lines = path.read_text("utf-8").splitlines()
    kinds = [(run["scheduler"], run["interval_s"]) for run in map(json.loads, lines)]
    assert sorted(kinds) == [("gavel", 360), ("hadar", 60), ("hadar", 360)]
    second = compare(
        tmp_path, *words, "hadar,gavel,srsf,sia,sia_fix,sia_fix-batch,hadar-tuned,hadar-tuned-now"
    )
    assert second.returncode == 0, second.stderr
    more = path.read_text("utf-8").splitlines()
    assert more[: len(lines)] == lines
    runs = {(run["scheduler"], run["interval_s"]): run for run in map(json.loads, more)}
    assert len(runs) == len(more) == 10
    assert all(run["jobs"] == 4 and run["versions"]["python"] for run in runs.values())
    # The large job is by half slower on slow GPUs only, small ones are by three quarters.
    assert runs["hadar", 60]["mean_jct_s"] < runs["hadar", 360]["mean_jct_s"]
    assert runs["hadar", 360]["mean_jct_s"] < 1.05 * runs["gavel", 360]["mean_jct_s"]
    # With their batch sizes tuned, jobs of the stand-in are twice as fast.
    pairs = [(f"hadar-tuned{now}", "hadar") for now in ("", "-now")]
    for tuned, kept in [("sia_fix", "sia_fix-batch"), *pairs]:
        assert runs[tuned, 360]["makespan_s"] < runs[kept, 360]["makespan_s"]
    assert "| `hadar`, 360 s | batch size fixed |" in (tmp_path / "README.md").read_text("utf-8")


def test_without_an_artifact_the_script_says_what_it_needs(tmp_path: Path) -> None:
    """It neither runs nor writes anything."""
    done = compare(tmp_path)
    assert done.returncode == 2
    assert "path to the artifact" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not ARTIFACT, reason="needs Sia's artifact: set HADAR_SIA_ARTIFACT")
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, LIBRARIES)), reason="needs Sia's libraries"
)
def test_a_run_of_the_real_simulator_is_the_recorded_one(tmp_path: Path) -> None:
    """Gavel's decisions are the simulator's own, so its figures do not depend on us."""
    done = compare(tmp_path, str(ARTIFACT), "--workloads", "saturn-1", "--schedulers", "gavel")
    assert done.returncode == 0, done.stderr
    (mine,) = map(json.loads, (tmp_path / "runs.jsonl").read_text("utf-8").splitlines())
    recorded = map(json.loads, (SIA / "runs.jsonl").read_text("utf-8").splitlines())
    names = ("workload", "scheduler", "interval_s")
    (same,) = (one for one in recorded if all(one[name] == mine[name] for name in names))
    figures = ("jobs", "mean_jct_s", "p99_jct_s", "makespan_s", "restarts")
    assert {name: mine[name] for name in figures} == {name: same[name] for name in figures}
