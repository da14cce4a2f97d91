"""The journal and the heartbeat as metrics for Prometheus. No label names a job, one metric users.

Names are listed in docs/web.md. hadard's liveness and problems come from the heartbeat, since the
journal may be the problem; all else comes from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from hadar_slurm import __version__
from hadar_slurm.state.heartbeat import PARTS
from hadar_slurm.state.problems import Problem
from hadar_slurm.web.counts import (
    ENDS,
    JUDGEMENTS,
    MODES,
    OTHER,
    PHASES,
    REASONS,
    Counts,
    counted,
    one_of,
)
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.history import JournalView, Now
from hadar_slurm.web.lines import partition_of
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.ratios import throughput_ratios
from hadar_slurm.web.words import clean

# Users who are named, those whose claims were off most.
MAX_USERS = 10

# One number, or numbers by a label or several.
_Values = float | Mapping[Any, float]


def exposition(
    follower: Follower, accept: str, now_s: float, pulse: Pulse | None = None
) -> tuple[bytes, str]:
    """Return the metrics and their content type, in a form that the Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(_Collector(follower, now_s, pulse))
    try:
        encode, kind = choose_encoder(accept)
    except (TypeError, ValueError):
        # The library does not validate the version in the Accept header.
        encode, kind = choose_encoder("")
    return encode(registry), kind


class _Collector(NamedTuple):
    follower: Follower
    now_s: float
    pulse: Pulse | None

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not collect to learn the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, as of one moment."""
        follower = self.follower
        build = "Version of hadar_slurm that serves this page."
        strange = "Lines read that are not valid journal lines."
        with follower.lock:
            return [
                _gauge("build_info", build, {__version__: 1}, "version"),
                _gauge("journal_readable", "Whether the journal is there.", not follower.fault),
                _gauge("journal_strange_lines", strange, follower.strange),
                *(_life(self.pulse, self.now_s) if self.pulse else ()),
                *_ages(follower.history, self.now_s),
                *_state(follower.history, follower.history.now),
                *_claims(follower.history, self.now_s),
                *_of_hadard(follower.history, follower.counts),
                *_counted(follower.counts),
            ]


def _life(pulse: Pulse, now_s: float) -> Iterator[Metric]:
    words = "Whether hadard's heartbeat is fresh: it runs, and its rounds succeed."
    yield _gauge("daemon_up", words, pulse.is_alive(now_s))
    yield _gauge("daemon_running", "Whether hadard's process runs.", pulse.is_running(now_s))
    rounds = pulse.rounds(now_s)
    words = "Rounds that have failed in a row, by the part that failed last."
    failing = {part: rounds.failed * (part == rounds.part) for part in PARTS}
    yield _gauge("failing_rounds", words, failing, "part")
    if rounds.succeeded_s is not None:
        words = "When the last round ended that succeeded."
        yield _gauge("last_success_timestamp_seconds", words, rounds.succeeded_s)
    found = counted(pulse.problems(now_s), tuple(map(str, Problem)))
    current = {kind: min(1, number) for kind, number in found.items()}
    yield _gauge("problem", "1 for each current problem of hadard.", current, "kind")


def _ages(history: JournalView, now_s: float) -> Iterator[Metric]:
    now = history.now
    if history.is_empty or not history.is_epoch:
        return
    read = "When the last round read Slurm's state."
    yield _gauge("last_round_timestamp_seconds", read, now.time_s)
    yield _gauge("last_round_age_seconds", "Age of the last round.", max(0.0, now_s - now.time_s))
    yield _gauge("round_length_seconds", "Configured length of a round.", now.length_s)
    if now.seen_s is not None:
        age_s = max(0.0, now_s - now.seen_s)
        yield _gauge("snapshot_age_seconds", "Age of the last complete snapshot.", age_s)


def _state(history: JournalView, now: Now) -> Iterator[Metric]:
    # All partitions seen, so that every series ends at 0.
    partitions, states = sorted(history.partitions) or [""], (*PHASES, OTHER)
    found = Counter((partition_of(job), one_of(job["phase"], PHASES)) for job in now.jobs.values())
    jobs = {(name, state): found[name, state] for name in partitions for state in states}
    yield _gauge("jobs", "Managed jobs.", jobs, "partition", "state")
    yield _gauge("mode", "1 for modes in use.", {m: m in now.modes for m in MODES}, "mode")
    names = (REASONS.get(str(why), "") for why in now.waiting.values())
    reasons = counted(names, tuple(REASONS.values()))
    yield _gauge("waiting_jobs", "Jobs without GPUs in the plan, by the reason.", reasons, "reason")
    copies = {phase: now.copies.get(phase, 0) for phase in PHASES}
    yield _gauge("copies", "Gangs held; a forked job has one for each copy.", copies, "state")
    gpus = {
        (gpu_type, state): float(getattr(count, state))
        for gpu_type, count in now.gpus.items()
        for state in ("held", "others", "idle", "closed")
    }
    words = "GPUs by state: held by managed jobs, by others, idle, or closed to new work."
    yield _gauge("gpus", words, gpus, "gpu_type", "state")
    yield _gauge("gpu_price", "The policy's price of the next GPU.", now.prices, "gpu_type")
    ratios = throughput_ratios(history.held(), now.jobs, now.nodes)
    fastest = "relative to the fastest type they could have"
    words = f"Expected throughput of jobs on a GPU type, {fastest}."
    yield _gauge("gpu_effective_throughput_ratio", words, ratios, "gpu_type")


def _claims(history: JournalView, now_s: float) -> Iterator[Metric]:
    """Yield what of users' claims is corrected now."""
    less = history.claims.believed_less(now_s if history.is_epoch else history.now.time_s)
    factors = [
        {each.user: factor for each in less if (factor := getattr(each, name)) > 1}
        for name in ("steps_times", "throughputs_off")
    ]
    numbers = dict(zip(("steps", "throughputs"), map(len, factors), strict=True))
    words = "Users whose claims of steps are multiplied, or whose throughputs do not count."
    yield _gauge("users_believed_less", words, numbers, "of")
    words = f"What claims of these users were off by, and steps are multiplied by; of {MAX_USERS}."
    values = {
        (user, of): factor
        for of, users in zip(numbers, factors, strict=True)
        for user, factor in sorted(users.items(), key=lambda item: -item[1])[:MAX_USERS]
    }
    yield _gauge("claim_factor", words, values, "user", "of")


def _of_hadard(history: JournalView, counts: Counts) -> Iterator[Metric]:
    """Yield the metrics that simulations and older journals lack."""
    if held := [row.held for row in history.rounds if row.held is not None]:
        yield _gauge("held_jobs", "Jobs that hadard holds.", held[-1])
    if expired := [row.expired for row in history.rounds if row.expired is not None]:
        yield _counter("holds_expired", "Jobs released by the reaper.", expired[-1])
    if any(row.averages is not None for row in history.rounds):
        yield _counter("averages", "Parameter averagings of forked jobs.", counts.averages)


def _counted(counts: Counts) -> Iterator[Metric]:
    yield _counter("rounds", "Rounds.", counts.rounds)
    yield _counter("failed_rounds", "Rounds with an error.", counts.failed)
    yield _counter("solver_fallback", "Rounds decided greedily.", counts.fallbacks)
    words = "Actions by outcome; a gang of several GPU types counts for each."
    labels = ("action", "status", "partition", "gpu_type")
    yield _counter("decisions", words, dict(sorted(counts.decisions.items())), *labels)
    commands = dict(sorted(counts.commands.items()))
    words = "Slurm's commands by what came of them."
    yield _counter("slurm_commands", words, commands, "command", "answer")
    judged = {name: counts.judged[name] for name in JUDGEMENTS}
    words = "Judged jobs by the time that they took, against the time claimed."
    yield _counter("judged_claims", words, judged, "took")
    ended = counted(counts.ended.elements(), ENDS)
    yield _counter("ended_jobs", "Jobs that have ended.", ended, "state")
    for name, words, seen in (
        ("hadar_round_duration_seconds", "Duration of a round without waiting.", counts.round_s),
        ("hadar_solver_duration_seconds", "Duration of the policy's decision.", counts.plan_s),
    ):
        yield HistogramMetricFamily(name, words, buckets=seen.cumulated(), sum_value=seen.sum_s)


def _metric(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    words: str,
    values: _Values,
    *labels: str,
) -> Metric:
    family = kind(f"hadar_{name}", words, labels=labels)
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        keys = (key,) if isinstance(key, str) else key
        family.add_metric([clean(each) for each in keys], float(value))
    return family


_gauge = partial(_metric, GaugeMetricFamily)
_counter = partial(_metric, CounterMetricFamily)
