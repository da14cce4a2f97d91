"""A share of the users under a policy, and the others under plain Slurm on the same GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import a_cluster, a_job, a_snapshot, placed_by, some_rates
from histories import MODERN, modern_history

from hadar_slurm.core.cluster import Slot
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.snapshot import Round
from hadar_slurm.lab.adoption import adoption_notes, adoption_tree
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.policies.adoption import Adoption
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.study.compare import Cell, Record, StudyWorkload, run_cell
from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.lab.traces.adopters import as_submitted, users_drawn
from hadar_slurm.lab.traces.load import parse_trace
from hadar_slurm.metrics import Segment
from hadar_slurm.policies.registry import make_policy

CLUSTER = a_cluster(",".join(f"4x{name},4x{name}" for name in MODERN))
TRACE = parse_trace(modern_history(90, users=9, gap_s=300.0), "modern", read_table(None), CLUSTER)
MODERN_TYPES = tuple(CLUSTER.gpus_by_type)
# Users who leave out types that are slow for them.
OPEN = make_policy("slurm:list:open")
assert isinstance(OPEN, PlainSlurm)
USERS = sorted({job.user for job in TRACE.jobs})


def played(percent: int, policy: str = "hadar") -> tuple[Result, frozenset[str]]:
    """Return a run in which a share of the users has adopted a policy, and these users."""
    users = users_drawn(USERS, percent, seed=0)
    specs = as_submitted(TRACE.jobs, users)
    return run_experiment(specs, CLUSTER, Adoption(make_policy(policy), users, OPEN)), users


def most_used(segments: Sequence[Segment]) -> dict[Slot, int]:
    """Return the most GPUs of each slot that were ever held at once."""
    changes = [
        (at_s, sign * count, slot)
        for each in segments
        for slot, count in each.gang.slots
        for at_s, sign in ((each.start_s, 1), (each.end_s, -1))
    ]
    held: Counter[Slot] = Counter()
    most: Counter[Slot] = Counter()
    # Ends first.
    for _, change, slot in sorted(changes):
        held[slot] += change
        most[slot] = max(most[slot], held[slot])
    return dict(most)


def jcts_by_user(result: Result) -> dict[str, list[float]]:
    owner = {job.job_id: job.user for job in TRACE.jobs}
    found = defaultdict[str, list[float]](list)
    for done in result.jcts:
        found[owner[done.job_id]].append(done.jct_s)
    return found


def test_a_larger_share_contains_every_smaller_one() -> None:
    for seed in range(3):
        drawn = [users_drawn(USERS, percent, seed=seed) for percent in (0, 10, 30, 50, 100)]
        assert list(map(len, drawn)) == [0, 1, 3, 4, 9]
        assert all(less < more for less, more in pairwise(drawn))
    assert users_drawn(USERS, 30, seed=0) != users_drawn(USERS, 30, seed=1)
    # However few they are, some users adopt; jobs without a user never do.
    assert len(users_drawn(["a", "b", ""], 1, seed=0)) == 1
    assert users_drawn(["a", "b", ""], 100, seed=0) == {"a", "b"}


def test_jobs_of_others_are_not_migrated() -> None:
    """All else is as their users have it."""
    specs = as_submitted(TRACE.jobs, frozenset({"user1"}))
    for before, after in zip(TRACE.jobs, specs, strict=True):
        is_mine = before.user == "user1"
        assert after == (before if is_mine else replace(before, can_checkpoint=False))


@pytest.mark.parametrize("percent", [0, 30, 70, 100])
def test_the_accounts_balance(percent: int) -> None:
    """No GPU is used twice, all jobs end, plain ones on types that their users chose."""
    result, users = played(percent)
    assert result.completed + result.killed == len(TRACE.jobs)
    assert all(
        count <= CLUSTER.capacity[slot] for slot, count in most_used(result.segments).items()
    )
    plain = {job.job_id for job in TRACE.jobs if job.user not in users}
    by_id = {job.job_id: job for job in TRACE.jobs}
    runs = Counter(segment.job_id for segment in result.segments)
    assert all(runs[job_id] == 1 for job_id in plain)
    for segment in result.segments:
        if segment.job_id in plain:
            speeds = {k: by_id[segment.job_id].throughput_on(k) for k in MODERN_TYPES}
            (gpu_type,) = segment.gang.gpus_by_type
            assert speeds[gpu_type] >= 0.4 * max(speeds.values())
    by_user = jcts_by_user(result)
    total_s = sum(sum(times) for times in by_user.values())
    assert total_s / result.jobs == pytest.approx(result.mean_jct_s)


def test_with_all_users_the_policy_decides_alone() -> None:
    result, _ = played(100, "srsf")
    alone = run_experiment(TRACE.jobs, CLUSTER, make_policy("srsf"))
    assert result.jcts == alone.jcts


def test_with_no_users_it_is_plain_slurm() -> None:
    result, _ = played(0)
    specs = as_submitted(TRACE.jobs, frozenset())
    assert result.jcts == run_experiment(specs, CLUSTER, OPEN).jcts


def owned(job_id: str, user: str, at_s: float, *, on: str = "", **rates: float) -> Job:
    """Return a job of one GPU; with `on` it runs on that gang."""
    job = a_job(job_id, on=on, throughputs=some_rates(**rates), submitted_s=at_s, steps=10**6)
    spec = replace(job.spec, user=user, can_checkpoint=user == "ada")
    return replace(job, spec=spec)


def plan_of(cluster: str, *jobs: Job) -> dict[str, str]:
    """Return where jobs are placed if `ada` has adopted `srsf`."""
    policy = Adoption(make_policy("srsf"), frozenset({"ada"}))
    return placed_by(policy.plan(a_snapshot(cluster, *jobs, now_s=99.0), Round(0, 99.0, 360.0)))


def test_gpus_go_to_both_sides_in_the_order_of_the_queue() -> None:
    """Of two free GPUs a plain job gets its turn, however short the adopted jobs behind it are."""
    ben = owned("1", "ben", 1.0, V100=1.0)
    ada = [owned(str(n), "ada", float(n), V100=100.0) for n in (2, 3)]
    assert plan_of("2xV100", ben, *ada).keys() == {"1", "2"}
    late = owned("9", "ben", 9.0, V100=1.0)
    assert plan_of("2xV100", late, *ada).keys() == {"2", "3"}


def test_the_policy_decides_which_of_its_jobs_run() -> None:
    """A shorter adopted job takes the GPU of a longer one; a plain job is never stopped."""
    held = owned("1", "ben", 1.0, on="n1:V100:1", V100=1.0)
    long = owned("2", "ada", 2.0, on="n1:V100:1", V100=1.0)
    short = owned("3", "ada", 3.0, V100=100.0)
    assert plan_of("2xV100", held, long, short) == {"1": "n1:V100:1", "3": "n1:V100:1"}


def test_free_gpus_that_the_policy_leaves_go_to_plain_jobs() -> None:
    """Slurm gives the GPU to the adopted job, which takes a faster one; a plain job gets it."""
    ada = owned("1", "ada", 1.0, K80=1.0, V100=9.0)
    ben = owned("2", "ben", 2.0, K80=1.0)
    assert plan_of("1xK80,1xV100", ada, ben) == {"1": "n2:V100:1", "2": "n1:K80:1"}


def test_gpus_kept_free_for_a_plain_gang_stay_free() -> None:
    """The policy does not start jobs on what plain Slurm reserves for a plain gang."""
    runs = owned("1", "ben", 0.0, on="n1:V100:1", V100=1000.0)
    gang = replace(owned("2", "ben", 1.0, V100=1.0), spec=replace(
        owned("2", "ben", 1.0, V100=1.0).spec, num_gpus=2, shapes=(Shape(1, 2),)
    ))  # fmt: skip
    ada = owned("3", "ada", 2.0, V100=1.0)
    assert plan_of("2xV100", runs, gang, ada).keys() == {"1"}


def records(*percents: int) -> list[Record]:
    found = []
    for percent in (0, *percents):
        users = users_drawn(USERS, percent, seed=0)
        workload = StudyWorkload(
            name="modern", specs=tuple(as_submitted(TRACE.jobs, users)), seed=0
        )
        cell = Cell(
            workload=workload,
            cluster=CLUSTER,
            cluster_name="8 of each",
            policy="srsf",
            adoption=percent,
            adopters=users,
        )
        found.append(run_cell(cell))
    return found


def test_gains_by_user_add_up_to_the_simulators_figures() -> None:
    """Over the users, jobs and completion times sum up to those of the runs."""
    before, after = records(30)
    assert (before["status"], after["status"]) == ("done", "done")
    (tree,) = adoption_tree([before, after])
    assert (tree["trace"], tree["policy"], tree["percent"], tree["seed"]) == (
        "modern",
        "srsf",
        30,
        0,
    )
    users = tree["users"]
    assert {each["user"] for each in users if each["adopts"]} == users_drawn(USERS, 30, seed=0)
    for key, record in (("mean_jct_s", after), ("mean_jct_before_s", before)):
        total_s = sum(each["jobs"] * each[key] for each in users)
        assert total_s == pytest.approx(sum(record["jcts_s"]))
        assert tree["all"][key] == pytest.approx(record["mean_jct_s"], abs=0.01)
        parts = tree["adopters"], tree["others"]
        assert sum(p["jobs"] * p[key] for p in parts) == pytest.approx(total_s)
    assert sum(part["users"] for part in (tree["adopters"], tree["others"])) == len(USERS)
    for each in (*users, tree["all"], tree["adopters"], tree["others"]):
        assert each["gain"] == pytest.approx(each["mean_jct_before_s"] / each["mean_jct_s"])
    over_shares, by_user = adoption_notes([before, after])
    assert over_shares.table[1][0] == "30 %"
    assert [row[0] for row in by_user.table[1:]] == [each["user"] for each in users]


def test_without_the_run_of_nobody_there_is_no_gain() -> None:
    _, after = records(30)
    assert adoption_tree([after]) == []
    assert adoption_notes([after]) == []


def test_jobs_ended_by_their_limits_are_counted_on_both_sides() -> None:
    """By user, and in the table over the shares where there are any."""
    before, after = ({**record, "killed_jobs": []} for record in records(30))
    plain, _ = adoption_notes([before, after])
    assert "timed out" not in plain.table[0]
    owner = before["users"][0]
    (tree,) = adoption_tree([{**before, "killed_jobs": [0, 1]}, {**after, "killed_jobs": [0]}])
    assert (tree["all"]["killed_before"], tree["all"]["killed"]) == (2, 1)
    assert [each["user"] for each in tree["users"] if each["killed"]] == [owner]
    over, _ = adoption_notes([{**before, "killed_jobs": [0, 1]}, after])
    assert (over.table[0][-2:], over.table[1][-2:]) == (
        ("timed out at 0 %", "timed out"),
        ("2", "0"),
    )
    assert "look shorter" in over.paragraphs[-1]
