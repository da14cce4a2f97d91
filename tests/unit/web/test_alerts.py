"""Each shipped alert fires for the fault that it is for, and no other one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml
from promql import alerts_of
from web_journals import NOW_S, ROUND_S, Tree, a_blind_line, a_job, a_line, an_action, write

from hadar_slurm.core.plan import WaitReason
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.state.last_rounds import LastRounds
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.pulse import Pulse

RULES = Path(__file__).parents[3] / "slurm_conf" / "prometheus-alerts.yaml"
# When the metrics are read for the second time, half a minute after a round.
LATE_S = NOW_S + 10 * ROUND_S + 30.0
FINE = LastRounds(LATE_S - 30.0)


@dataclass
class Bench:
    """The metrics of a site an hour ago and now, by its journal and heartbeat."""

    place: Path
    beat: Heartbeat | None = field(init=False)
    lines: list[Tree] = field(init=False)
    hides_journal: bool = False
    has_pulse: bool = True

    def __post_init__(self) -> None:
        good_until_s = LATE_S + 29.0
        self.beat = Heartbeat(1, "toy", good_until_s, "", good_for_s=30.0, signed_s=LATE_S - 1.0)
        self.change(rounds=FINE)
        self.lines = [a_line(number, {"1": a_job("n1:V100:1")}) for number in range(1, 11)]

    def change(self, **more: object) -> None:
        """Change the heartbeat."""
        assert self.beat is not None
        self.beat = replace(self.beat, **more)  # type: ignore[arg-type]

    def fail(self, part: str, fault: str) -> None:
        """Let the heartbeat show rounds that fail."""
        rounds = LastRounds(LATE_S - 5 * ROUND_S, 4, LATE_S - 4 * ROUND_S, part, fault)
        self.change(good_until_s=0.0, rounds=rounds)

    def fired(self) -> set[str]:
        """Return the alerts whose conditions hold now."""
        path = self.place / "journal.jsonl"
        write(path, a_line(0, {"1": a_job("n1:V100:1")}))
        pulse = Pulse(self.place)
        with Follower(path, every_s=3600.0) as follower:
            if self.beat is not None:
                write_heartbeat(self.place, self.beat)
            pulse.poll()
            before = exposition(follower, "", NOW_S, pulse)[0].decode()
            write(path, *self.lines)
            if self.hides_journal:
                path.unlink()
                path.mkdir()
            follower.poll()
            seen = pulse if self.has_pulse else None
            pages = [before, exposition(follower, "", LATE_S, seen)[0].decode()]
        (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
        return {rule["alert"] for rule in group["rules"] if alerts_of(rule["expr"], pages, LATE_S)}


def gone(bench: Bench) -> None:
    bench.beat = None
    bench.lines = bench.lines[:2]


def killed(bench: Bench) -> None:
    bench.change(good_until_s=LATE_S - 300.0, signed_s=LATE_S - 330.0)
    bench.lines = bench.lines[:8]


def killed_while_failing(bench: Bench) -> None:
    bench.fail("plan", "KeyError")
    bench.change(signed_s=LATE_S - 330.0)


def policy_fails(bench: Bench) -> None:
    bench.fail("plan", "KeyError: 'gtx1080'")
    wrong: Tree = {"plan": None, "figures": {}, "errors": ["KeyError: 'gtx1080'"]}
    bench.lines = [line | wrong for line in bench.lines]


def slurm_is_away(bench: Bench) -> None:
    bench.fail("observe", "squeue: timed out")
    bench.lines = [a_blind_line(number) for number in range(1, 11)]


def all_changes_are_refused(bench: Bench) -> None:
    bench.fail("apply", "all changes are refused: Access/permission denied")
    refused = [an_action("start", str(job), "n1:V100:1", "refused") for job in range(3)]
    bench.lines = [line | {"actions": refused} for line in bench.lines]


def some_changes_are_refused(bench: Bench) -> None:
    refused = [an_action("start", job, "n1:V100:1", "refused") for job in ("1", "2")]
    bench.lines = [line | {"actions": refused} for line in bench.lines]


def a_round_does_not_end(bench: Bench) -> None:
    bench.change(good_until_s=0.0, rounds=LastRounds(LATE_S - 5 * ROUND_S))
    bench.lines = bench.lines[:5]


def rounds_end_without_a_heartbeat_to_read(bench: Bench) -> None:
    bench.has_pulse = False
    bench.lines = bench.lines[:5]


def disk_is_full(bench: Bench) -> None:
    bench.change(problems={"journal": "No space left on device"})
    bench.lines = bench.lines[:2]


def ledger_cannot_be_written(bench: Bench) -> None:
    bench.change(problems={"ledger": "Read-only file system"}, partitions=())


def journal_cannot_be_read(bench: Bench) -> None:
    bench.hides_journal = True


def a_job_breaks_the_plan(bench: Bench) -> None:
    jobs = {"1": a_job("n1:V100:1"), "2": a_job()}
    waiting = {"2": str(WaitReason.BREAKS_PLAN)}
    bench.lines = [a_line(number, jobs, waiting=waiting) for number in range(1, 11)]


def claims_are_off(bench: Bench) -> None:
    credit = {"times": 5.0, "speeds_off": 1.0, "jobs": 9, "at_s": LATE_S}
    bench.lines = [line | {"credits": {"eve": credit}} for line in bench.lines]


def nothing(bench: Bench) -> None:
    pass


def switched_off(bench: Bench) -> None:
    bench.change(partitions=())


def two_rounds_failed(bench: Bench) -> None:
    bench.change(rounds=replace(FINE, failed=2, since_s=LATE_S, part="plan", fault="KeyError"))


def an_older_hadard(bench: Bench) -> None:
    bench.change(signed_s=None, rounds=LastRounds())


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (nothing, set()),
        (switched_off, set()),
        (two_rounds_failed, set()),
        (an_older_hadard, set()),
        (gone, {"HadarDaemonGone"}),
        (killed, {"HadarDaemonGone"}),
        (killed_while_failing, {"HadarDaemonGone"}),
        (policy_fails, {"HadarNoPlan"}),
        (slurm_is_away, {"HadarClusterUnseen"}),
        (all_changes_are_refused, {"HadarChangesFail"}),
        (some_changes_are_refused, {"HadarActionsRefused"}),
        (a_round_does_not_end, {"HadarRoundsStopped"}),
        (rounds_end_without_a_heartbeat_to_read, {"HadarRoundsStopped"}),
        (disk_is_full, {"HadarProblem"}),
        (ledger_cannot_be_written, {"HadarProblem"}),
        (journal_cannot_be_read, {"HadarJournalUnreadable"}),
        (a_job_breaks_the_plan, {"HadarJobsLeftOut"}),
        (claims_are_off, {"HadarClaimsOff"}),
    ],
)
def test_an_alert_is_for_its_fault(
    tmp_path: Path, fault: Callable[[Bench], None], expected: set[str]
) -> None:
    bench = Bench(tmp_path)
    fault(bench)
    assert bench.fired() == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("up == 1", {"a": 1.0}),
        ("up >= 0", {"a": 1.0, "b": 0.0}),
        ('up{host="b"} - 2 * 3', {"b": -6.0}),
        ("time() - up > 8", {"a": 9.0, "b": 10.0}),
        ("up unless on (host) up == 1", {"b": 0.0}),
        ("up == 1 or up == 0", {"a": 1.0, "b": 0.0}),
        ("up and on (host) seen_total > 3", {"b": 0.0}),
        ("sum by (host) (increase(seen_total[1h])) > 2", {"b": 4.0}),
    ],
)
def test_expressions_mean_what_prometheus_takes_them_for(
    expression: str, expected: dict[str, float]
) -> None:
    pages = [
        f'up{{host="a"}} 1\nup{{host="b"}} 0\nseen_total{{host="a"}} {a}\n'
        f'seen_total{{host="b"}} {b}\n'
        for a, b in ((1, 1), (2, 5))
    ]
    found = alerts_of(expression, pages, 10.0)
    assert {dict(labels)["host"]: value for labels, value in found.items()} == expected
