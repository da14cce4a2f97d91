"""Each shipped alert fires for the fault that it is for, and no other one does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse
from promql import alerts_of
from web_journals import NOW_S, ROUND_S, Tree, a_blind_line, a_job, a_line, an_action, write

from hadar_slurm.core.plan import WaitReason
from hadar_slurm.state.heartbeat import Heartbeat, LastRounds, write_heartbeat
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

    def pages(self) -> list[str]:
        """Return the metrics an hour ago and now."""
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
            return [before, exposition(follower, "", LATE_S, seen)[0].decode()]

    def fired(self) -> set[str]:
        """Return the alerts whose conditions hold now."""
        pages = self.pages()
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


FAULTS: list[tuple[Callable[[Bench], None], set[str]]] = [
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
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
def test_an_alert_is_for_its_fault(
    tmp_path: Path, fault: Callable[[Bench], None], expected: set[str]
) -> None:
    bench = Bench(tmp_path)
    fault(bench)
    assert bench.fired() == expected


# For how many minutes the metrics of a fault last: longer than any rule waits. Those before are of
# a site without faults.
MINUTES_WELL, MINUTES = 60, 120


def a_series(name: str, value: float, before: float, at_s: float) -> str:
    """Return the samples of a fault, one a minute, in promtool's form.

    Counters go on as they did in the last hour, and what is a time keeps its age.
    """
    if name.endswith("_total"):
        return f"{before}+{(value - before) / 60}x{MINUTES}"
    if name.endswith("_timestamp_seconds"):
        return f"{value - LATE_S + at_s}+60x{MINUTES}"
    return f"{value}+0x{MINUTES}"


def values(page: str, site: str) -> dict[str, float]:
    """Return the values by series, as Prometheus writes these, of a page's metrics with rules."""
    found, rules = {}, RULES.read_text(encoding="utf-8")
    for sample in (sample for family in parse(page) for sample in family.samples):
        labels = {"job": site, **sample.labels}
        if sample.name in rules:
            pairs = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            found[f"{sample.name}{{{pairs}}}"] = sample.value
    return found


def all_series(bench: Bench, well: Bench, site: str) -> Iterator[dict[str, str]]:
    """Yield the series of a site that is well at first, in promtool's form."""
    before, now = (values(page, site) for page in bench.pages())
    fine = values(well.pages()[1], site)
    for key in sorted({*fine, *now}):
        name = key.partition("{")[0]
        first = a_series(name, fine[key], fine[key], 0.0) if key in fine else ""
        first = first.replace(f"x{MINUTES}", f"x{MINUTES_WELL - 1}") or f"_x{MINUTES_WELL}"
        at_s = 60.0 * MINUTES_WELL
        later = a_series(name, now[key], before.get(key, 0.0), at_s) if key in now else "stale"
        yield {"series": key, "values": f"{first} {later}"}


def test_prometheus_itself_fires_the_alerts_once_their_faults_have_lasted(tmp_path: Path) -> None:
    """promtool, if installed: with the durations of the rules, and never at once."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    series, firing = [], []
    for fault, expected in FAULTS:
        benches = []
        for place in (tmp_path / fault.__name__, tmp_path / f"{fault.__name__}-well"):
            place.mkdir()
            benches.append(Bench(place))
        fault(benches[0])
        series += all_series(*benches, fault.__name__)
        labels = f'job="{fault.__name__}"'
        firing += [{"labels": f'{{alertname="{a}",{labels}}}', "value": 1} for a in expected]
    query = 'group by (alertname, job) (ALERTS{alertstate="firing"})'
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{minute}m", "exp_samples": found}
            for minute, found in ((MINUTES_WELL, []), (MINUTES_WELL + MINUTES - 1, firing))
        ],
    }
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
