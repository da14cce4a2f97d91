"""Metrics: their values for a journal, and the stability of their series."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse
from web_journals import (
    NOW_S,
    a_blind_line,
    a_job,
    a_line,
    an_action,
    gang,
    write,
)

from hadar_slurm import __version__
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower

# Metrics that simulations and journals of earlier versions lack.
OF_HADARD = ("hadar_held", "hadar_slurm", "hadar_holds", "hadar_averages")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def read(follower: Follower, *, now_s: float = NOW_S) -> Samples:
    """Return the samples by name and labels."""
    text = exposition(follower, "", now_s)[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_gauges_tell_how_things_stand(path: Path) -> None:
    """Gauges count jobs by phase and GPUs by type and state; prices, mode and ages are set."""
    jobs = {"1": a_job("n1:V100:1"), "2": a_job(), "3": a_job()}
    waiting = {"2": "the price of GPUs is above what it gains", "3": "a reason nobody knows"}
    write(path, a_line(1, jobs, waiting=waiting, occupied=gang("n2:K80:1")))
    with Follower(path) as follower:
        samples = read(follower, now_s=NOW_S + 400)
    assert value(samples, "hadar_build_info", version=__version__) == 1
    assert value(samples, "hadar_journal_readable") == 1
    assert value(samples, "hadar_mode", mode="hold") == 1
    assert value(samples, "hadar_mode", mode="observe") == 0
    assert value(samples, "hadar_jobs", partition="", state="running") == 1
    assert value(samples, "hadar_jobs", partition="", state="queued") == 2
    assert value(samples, "hadar_jobs", partition="", state="stopping") == 0
    assert value(samples, "hadar_waiting_jobs", reason="outbid") == 1
    assert value(samples, "hadar_waiting_jobs", reason="other") == 1
    assert value(samples, "hadar_waiting_jobs", reason="infeasible") == 0
    assert value(samples, "hadar_copies", state="running") == 1
    assert value(samples, "hadar_gpus", gpu_type="V100", state="held") == 1
    assert value(samples, "hadar_gpus", gpu_type="V100", state="idle") == 1
    assert value(samples, "hadar_gpus", gpu_type="K80", state="others") == 1
    assert value(samples, "hadar_gpus", gpu_type="K80", state="closed") == 0
    assert value(samples, "hadar_gpu_price", gpu_type="V100") == 0.5
    assert value(samples, "hadar_last_round_timestamp_seconds") == NOW_S + 360
    assert value(samples, "hadar_snapshot_age_seconds") == 40
    assert value(samples, "hadar_round_length_seconds") == 360


def test_counters_count_what_has_come_since_the_start(path: Path) -> None:
    """Lines from before the start of the page are not counted."""
    start = an_action("start", "1", "n1:V100:1 n2:K80:1")
    write(path, a_line(0, {"1": a_job()}, actions=[start]))
    with Follower(path) as follower:
        before = read(follower)
        assert value(before, "hadar_rounds_total") == 0
        refused = an_action("start", "1", "n1:V100:1", "refused")
        ended = {"9": {"phase": "done", "end_s": NOW_S}}
        figures = {"solver_fallback": 1.0}
        write(
            path,
            a_line(1, {"1": a_job()}, actions=[start, refused], figures=figures, ended=ended),
            a_blind_line(2),
            a_line(3, ended=ended),
        )
        follower.poll()
        after = read(follower)
    assert value(after, "hadar_rounds_total") == 3
    assert value(after, "hadar_failed_rounds_total") == 1
    assert value(after, "hadar_solver_fallback_total") == 1
    done = {"action": "start", "status": "done", "partition": ""}
    assert value(after, "hadar_decisions_total", gpu_type="V100", **done) == 1
    assert value(after, "hadar_decisions_total", gpu_type="K80", **done) == 1
    refusals = value(
        after,
        "hadar_decisions_total",
        gpu_type="V100",
        action="start",
        status="refused",
        partition="",
    )
    assert refusals == 1
    assert value(after, "hadar_ended_jobs_total", state="done") == 1
    assert value(after, "hadar_round_duration_seconds_count") == 3
    assert value(after, "hadar_round_duration_seconds_bucket", le="0.1") == 0
    assert value(after, "hadar_round_duration_seconds_bucket", le="0.5") == 3
    assert value(after, "hadar_round_duration_seconds_sum") == pytest.approx(3 * 0.29)
    assert value(after, "hadar_solver_duration_seconds_bucket", le="+Inf") == 3


def test_what_hadard_holds_and_how_slurm_answers_are_told(path: Path) -> None:
    """Commands are counted from the start on; unknown programs count as other."""
    before = {"squeue": {"done": 100}}
    write(path, a_line(0, {"1": a_job()}, held=3, commands=before))
    with Follower(path) as follower:
        assert value(read(follower), "hadar_held_jobs") == 3
        some = {"squeue": {"done": 2, "unavailable": 1}, "scontrol": {"refused": 4}}
        write(
            path,
            a_line(1, held=2, commands=some),
            a_line(1, mode="observe", held=2, commands={}),
            a_blind_line(2, held=1, commands={"squeue": {"done": 1}, "rm": {"well": 7}}),
        )
        follower.poll()
        after = read(follower)
    assert value(after, "hadar_held_jobs") == 1
    name = "hadar_slurm_commands_total"
    assert value(after, name, command="squeue", answer="done") == 3
    assert value(after, name, command="squeue", answer="unavailable") == 1
    assert value(after, name, command="scontrol", answer="refused") == 4
    assert value(after, name, command="other", answer="other") == 7


def test_claims_that_were_off_are_told_of_few_users(path: Path) -> None:
    """The factors now, of the ten users whose claims were off most; the numbers are of all."""
    credits = {
        f"user{n}": {"times": 2.0 + n, "speeds_off": 1.0, "jobs": 1, "at_s": NOW_S}
        for n in range(30)
    }
    credits["eve"] = {"times": 1.0, "speeds_off": 3.0, "jobs": 1, "at_s": NOW_S}
    write(path, a_line(0, credits=credits))
    name = "hadar_claim_factor"
    with Follower(path) as follower:
        samples = read(follower)
        later = read(follower, now_s=NOW_S + 30 * 86400.0)
        write(path, a_line(1))
        follower.poll()
        none = read(follower)
    named = {labels for found, labels in samples if found == name}
    assert len(named) == 11
    assert value(samples, name, user="user29", of="steps") == pytest.approx(31.0)
    assert value(samples, name, user="eve", of="throughputs") == pytest.approx(3.0)
    assert value(later, name, user="user29", of="steps") == pytest.approx(31.0**0.5)
    assert value(samples, "hadar_users_believed_less", of="steps") == 30
    assert value(samples, "hadar_users_believed_less", of="throughputs") == 1
    assert name not in {found for found, _ in none}
    assert value(none, "hadar_users_believed_less", of="steps") == 0


def test_judged_claims_are_counted_once(path: Path) -> None:
    """By whether jobs took longer than claimed, from the start on, though named again."""
    write(path, a_line(0, judged={"eve": {"gan": {"1": [10, 900]}}}))
    with Follower(path) as follower:
        assert value(read(follower), "hadar_judged_claims_total", took="longer") == 0
        jobs = {"2": [1000, 1200], "3": [1000, 1300], "4": [1000, 700], "1": [10, 900]}
        for number in (1, 2):
            write(path, a_line(number, judged={"eve": {"gan": jobs}}))
        follower.poll()
        after = read(follower)
    took = ("as_claimed", "longer", "shorter")
    assert [value(after, "hadar_judged_claims_total", took=name) for name in took] == [1, 1, 1]


def test_what_the_reaper_has_given_back_is_told(path: Path) -> None:
    """The counter has the journal's value, which also counts while the page is down."""
    write(path, a_line(0, expired=3))
    with Follower(path) as follower:
        assert value(read(follower), "hadar_holds_expired_total") == 3
        write(path, a_line(1, expired=5), a_line(2))
        follower.poll()
        assert value(read(follower), "hadar_holds_expired_total") == 5


def test_averages_are_counted(path: Path) -> None:
    """Averagings of all lines since the start are added up."""
    write(path, a_line(0, averages=7))
    with Follower(path) as follower:
        assert value(read(follower), "hadar_averages_total") == 0
        write(path, a_line(1, averages=2), a_line(2, averages=0), a_blind_line(3, averages=1))
        follower.poll()
        assert value(read(follower), "hadar_averages_total") == 3


def test_jobs_and_decisions_are_told_by_partition(path: Path) -> None:
    """A job submitted to several partitions counts as `several` until it starts."""
    jobs = {
        "1": a_job("n1:V100:1", partition="main"),
        "2": a_job(partition="main"),
        "3": a_job("n2:K80:1", partition="long"),
        "4": a_job(partition="main,long"),
    }
    write(path, a_line(0, jobs))
    with Follower(path) as follower:
        stop, start = an_action("stop", "1", "n1:V100:1"), an_action("start", "4", "n1:V100:1")
        write(path, a_line(1, jobs, actions=[stop, start, an_action("start", "9", "n1:V100:1")]))
        follower.poll()
        samples = read(follower)
        assert value(samples, "hadar_jobs", partition="main", state="running") == 1
        assert value(samples, "hadar_jobs", partition="main", state="queued") == 1
        assert value(samples, "hadar_jobs", partition="long", state="running") == 1
        assert value(samples, "hadar_jobs", partition="several", state="queued") == 1
        assert ("hadar_jobs", (("partition", ""), ("state", "queued"))) not in samples
        name, done = "hadar_decisions_total", {"status": "done", "gpu_type": "V100"}
        assert value(samples, name, action="stop", partition="main", **done) == 1
        assert value(samples, name, action="start", partition="several", **done) == 1
        assert value(samples, name, action="start", partition="", **done) == 1
        write(path, a_line(2))
        follower.poll()
        samples = read(follower)
    assert value(samples, "hadar_jobs", partition="long", state="running") == 0


def test_an_older_journal_does_not_tell_what_is_held(path: Path) -> None:
    """Metrics are omitted if the journal lacks their values."""
    write(path, a_line(0, {"1": a_job()}))
    with Follower(path) as follower:
        write(path, a_line(1))
        follower.poll()
        samples = read(follower)
    assert [key for key in samples if key[0].startswith(OF_HADARD)] == []
    assert value(samples, "hadar_rounds_total") == 1


RATIO = "hadar_gpu_effective_throughput_ratio"


def test_the_ratio_tells_how_well_jobs_are_where_they_are(path: Path) -> None:
    """The mean over a type's held GPUs of the job's speed over that on its fastest type."""
    throughputs = {"v100": 8.0, "k80": 2.0}
    jobs = {
        "1": a_job("n1:V100:1", rates=throughputs),
        "2": a_job("n2:K80:2", gpus=2, rates=throughputs),
        "3": a_job("n2:K80:1", rates={"v100": 3.0, "k80": 3.0}),
        "4": a_job(rates=throughputs),
    }
    write(path, a_line(0, jobs, nodes="n1:V100:2 n2:K80:4"))
    with Follower(path) as follower:
        samples = read(follower)
    assert value(samples, RATIO, gpu_type="V100") == 1
    assert value(samples, RATIO, gpu_type="K80") == pytest.approx((2 * 0.25 + 1) / 3)


def test_the_ratio_counts_what_this_round_has_started_and_stopped(path: Path) -> None:
    """Held GPUs are the same as in `hadar_gpus`."""
    throughputs = {"v100": 8.0, "k80": 2.0}
    jobs = {"1": a_job("n1:V100:1", rates=throughputs), "2": a_job(rates=throughputs)}
    moves = [an_action("stop", "1", "n1:V100:1"), an_action("start", "2", "n2:K80:1")]
    write(path, a_line(0, jobs, actions=moves))
    with Follower(path) as follower:
        samples = read(follower)
    assert value(samples, RATIO, gpu_type="K80") == 0.25
    assert (RATIO, (("gpu_type", "V100"),)) not in samples


def test_a_gang_of_several_types_counts_by_its_gpus(path: Path) -> None:
    """A mixed gang has the speed of its slowest GPU; each copy counts separately."""
    throughputs = {"v100": 8.0, "k80": 2.0}
    mixed = a_job("n1:V100:1 n2:K80:3", gpus=4, rates=throughputs)
    alone = a_job("n1:V100:1", rates={"v100": 1.0})
    copies = {"0": gang("n1:V100:1"), "1": gang("n2:K80:1")}
    forked = a_job("n1:V100:1", rates={"v100": 4.0, "k80": 2.0}, copies=2) | {"holds": copies}
    jobs = {"1": mixed, "2": alone, "3": forked}
    write(path, a_line(0, jobs, nodes="n1:V100:4 n2:K80:4"))
    with Follower(path) as follower:
        samples = read(follower)
    assert value(samples, RATIO, gpu_type="V100") == pytest.approx((0.25 + 1 + 1) / 3)
    assert value(samples, RATIO, gpu_type="K80") == pytest.approx((3 * 0.25 + 0.5) / 4)


def test_only_types_that_a_job_could_have_are_faster(path: Path) -> None:
    """Types that are absent, too few, or on nodes the job may not use do not count."""
    throughputs = {"h100": 90.0, "v100": 8.0, "k80": 2.0}
    jobs = {
        "1": a_job("n2:K80:3", gpus=3, rates=throughputs),
        "2": a_job("n2:K80:1", rates=throughputs, nodes=["n2"]),
    }
    write(path, a_line(0, jobs, nodes="n1:V100:2 n2:K80:4"))
    with Follower(path) as follower:
        assert value(read(follower), RATIO, gpu_type="K80") == 1
        write(path, a_line(1, jobs | {"2": jobs["2"] | {"nodes": ["n1", "n2"]}}))
        follower.poll()
        assert value(read(follower), RATIO, gpu_type="K80") == pytest.approx((3 + 0.25) / 4)


def test_no_ratio_is_told_where_no_speed_is_known(path: Path) -> None:
    """Jobs without throughputs, or on a type with unknown throughput, do not count."""
    jobs = {"1": a_job("n1:V100:1"), "2": a_job("n2:K80:1", rates={"v100": 8.0})}
    write(path, a_line(0, jobs))
    with Follower(path) as follower:
        samples = read(follower)
    assert [key for key in samples if key[0] == RATIO] == []


def test_both_formats_can_be_read(path: Path) -> None:
    """Both OpenMetrics and the older text format have the same metrics."""
    write(path, a_line(0, {"1": a_job("n1:V100:1")}))
    with Follower(path) as follower:
        text, kind = exposition(follower, "application/openmetrics-text; version=1.0.0", NOW_S)
        assert kind.startswith("application/openmetrics-text")
        new = {family.name for family in parse_open(text.decode())}
        text, kind = exposition(follower, "", NOW_S)
        assert kind.startswith("text/plain")
        old = {family.name for family in parse(text.decode())}
    assert new == old
    assert all(name.startswith("hadar_") for name in new)


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "*/*;q=z", "\xff,,;"]
)
def test_a_strange_wish_gets_the_plain_form(path: Path, accept: str) -> None:
    """An invalid Accept header gives the plain format."""
    write(path, a_line(0))
    with Follower(path) as follower:
        text, kind = exposition(follower, accept, NOW_S)
    assert kind.startswith("text/plain")
    assert list(parse(text.decode()))


def test_series_do_not_grow_with_jobs_or_users(path: Path) -> None:
    """One job and a thousand have the same series, and no label names a job or a user.

    The number of combinations of partitions does not matter either.
    """
    names = ["p0", "p1", "p2", "p3"]
    few_jobs = {name: a_job(partition=name) for name in (*names, "p0,p1")}
    write(path, a_line(0, few_jobs))
    with Follower(path) as follower:
        starts = [an_action("start", job, "n1:V100:1") for job in few_jobs]
        write(path, a_line(1, few_jobs, actions=starts))
        follower.poll()
        few = set(read(follower))
        ways = [*names, *(",".join(some) for some in permutations(names, 3))]
        jobs = {
            f"j{n}": a_job(
                user=f"user{n}",
                workload=f"work{n}",
                partition=ways[n % len(ways)],
                rates={"v100": 1.0 + n},
            )
            for n in range(1000)
        }
        starts = [an_action("start", job, "n1:V100:1") for job in jobs]
        write(path, a_line(2, jobs, actions=starts, waiting=dict.fromkeys(jobs, "because")))
        follower.poll()
        many = read(follower)
    assert set(many) - few == {(RATIO, (("gpu_type", "V100"),))}
    labels = {value for _, pairs in many for _, value in pairs}
    assert not [label for label in labels if "user" in label or "work" in label or "j1" in label]


def test_no_label_is_made_of_unknown_words(path: Path) -> None:
    """Unknown words of a damaged journal count as other, so that series are bounded."""
    write(path, a_line(0, {"1": a_job(phase="x1")}, mode="hold"))
    with Follower(path) as follower:
        odd = an_action("dance", "1", "n1:V100:1", "perhaps")
        ended = {"1": {"phase": "lost", "end_s": NOW_S}}
        write(path, a_line(1, {"2": a_job(phase="x2")}, actions=[odd], ended=ended))
        follower.poll()
        samples = read(follower)
    assert value(samples, "hadar_jobs", partition="", state="other") == 1
    assert value(samples, "hadar_ended_jobs_total", state="other") == 1
    odd_labels = {"action": "other", "status": "other", "partition": "", "gpu_type": "V100"}
    assert value(samples, "hadar_decisions_total", **odd_labels) == 1


def test_a_journal_that_is_not_there_is_a_metric(path: Path) -> None:
    """`hadar_journal_readable` is 0 for the alert, and unknown values are omitted."""
    with Follower(path) as follower:
        samples = read(follower)
    assert value(samples, "hadar_journal_readable") == 0
    assert ("hadar_last_round_timestamp_seconds", ()) not in samples
    assert ("hadar_snapshot_age_seconds", ()) not in samples


def test_a_simulation_has_no_age(path: Path) -> None:
    """The times of a simulation are not wall-clock times."""
    write(path, a_line(0, {"1": a_job()}, mode=""))
    with Follower(path) as follower:
        samples = read(follower)
    assert ("hadar_last_round_timestamp_seconds", ()) not in samples
    assert value(samples, "hadar_jobs", partition="", state="queued") == 1


def test_a_price_without_end_is_told(path: Path) -> None:
    """An infinite price in the journal is an infinite metric."""
    line = json.dumps(a_line(0)).replace('"price.V100": 0.5', '"price.V100": Infinity')
    path.write_text(line + "\n")
    with Follower(path) as follower:
        assert math.isinf(value(read(follower), "hadar_gpu_price", gpu_type="V100"))


def test_strange_lines_are_counted(path: Path) -> None:
    """Invalid lines are counted in a metric."""
    path.write_text("what?\n" + json.dumps({"version": 7}) + "\n[[[\n")
    with Follower(path) as follower:
        assert value(read(follower), "hadar_journal_strange_lines") == 3


def test_a_damaged_action_stops_nothing(path: Path) -> None:
    """A line with an invalid action is counted as strange, and the next one is read."""
    with Follower(path) as follower:
        odd = an_action("start", "1", "n1:V100:1", "refused") | {"gang": [3]}
        write(path, a_line(0, actions=[odd]), a_line(1))
        follower.poll()
        samples = read(follower)
    assert value(samples, "hadar_journal_strange_lines") == 1
    assert value(samples, "hadar_last_round_timestamp_seconds") == NOW_S + 360
