"""The journal and the heartbeat as metrics for Prometheus. No label names a job or a user.

Names are listed in docs/web.md. hadard's liveness and problems come from the heartbeat, since the
journal may be the problem; all else comes from the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from hadar_slurm import __version__
from hadar_slurm.state.problems import Problem
from hadar_slurm.web.counts import ENDS, MODES, PHASES, REASONS, Counts, Histogram, counted
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.history import History, Now
from hadar_slurm.web.lines import partition_of
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.ratios import throughput_ratios
from hadar_slurm.web.words import clean


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


class _Collector:
    def __init__(self, follower: Follower, now_s: float, pulse: Pulse | None) -> None:
        self._follower = follower
        self._pulse = pulse
        self._now_s = now_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not collect to learn the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, as of one moment."""
        follower = self._follower
        build = "Version of hadar_slurm that serves this page."
        with follower.lock:
            return [
                _gauges("build_info", build, "version", {__version__: 1}),
                _gauge("journal_readable", "Whether the journal is there.", not follower.fault),
                _gauge(
                    "journal_strange_lines",
                    "Lines read that are not valid journal lines.",
                    follower.strange,
                ),
                *(_life(self._pulse, self._now_s) if self._pulse else ()),
                *_ages(follower.history, self._now_s),
                _jobs(follower.history),
                *_standing(follower.history.now),
                _ratios(follower.history),
                *_held(follower.history),
                *_averages(follower.history, follower.counts),
                *_counted(follower.counts),
            ]


def _life(pulse: Pulse, now_s: float) -> list[Metric]:
    kinds = tuple(map(str, Problem))
    found = counted(pulse.problems(now_s), kinds)
    return [
        _gauge("daemon_up", "Whether hadard's heartbeat is fresh.", pulse.is_alive(now_s)),
        _gauges(
            "problem",
            "1 for each current problem of hadard.",
            "kind",
            {kind: min(1, number) for kind, number in found.items()},
        ),
    ]


def _ages(history: History, now_s: float) -> list[Metric]:
    now = history.now
    if history.is_empty or not history.is_epoch:
        return []
    told = [
        _gauge(
            "last_round_timestamp_seconds", "When the last round read Slurm's state.", now.time_s
        ),
        _gauge("last_round_age_seconds", "Age of the last round.", max(0.0, now_s - now.time_s)),
        _gauge("round_length_seconds", "Configured length of a round.", now.length_s),
    ]
    if now.seen_s is not None:
        words = "Age of the last complete snapshot."
        told.append(_gauge("snapshot_age_seconds", words, max(0.0, now_s - now.seen_s)))
    return told


def _jobs(history: History) -> Metric:
    """Return jobs by phase in all partitions seen, so that every series ends at 0."""
    family = GaugeMetricFamily("hadar_jobs", "Managed jobs.", labels=["partition", "state"])
    found: dict[str, list[str]] = {name: [] for name in sorted(history.partitions) or [""]}
    for job in history.now.jobs.values():
        found[partition_of(job)].append(job["phase"])
    for partition, phases in found.items():
        for state, number in counted(phases, PHASES).items():
            family.add_metric([partition, state], number)
    return family


def _standing(now: Now) -> list[Metric]:
    names = (REASONS.get(str(why), "") for why in now.waiting.values())
    gpus = GaugeMetricFamily(
        "hadar_gpus",
        "GPUs by state: held by managed jobs, by others, idle, or closed to new work.",
        labels=["gpu_type", "state"],
    )
    for kind, count in now.gpus.items():
        states = {
            "held": count.held,
            "others": count.others,
            "idle": count.idle,
            "closed": count.closed,
        }
        for state, number in states.items():
            gpus.add_metric([clean(kind), state], number)
    return [
        _gauges("mode", "1 for modes in use.", "mode", {m: m in now.modes for m in MODES}),
        _gauges(
            "waiting_jobs",
            "Jobs without GPUs in the plan, by the reason.",
            "reason",
            counted(names, tuple(REASONS.values())),
        ),
        _gauges(
            "copies",
            "Gangs held; a forked job has one for each copy.",
            "state",
            {phase: now.copies.get(phase, 0) for phase in PHASES},
        ),
        gpus,
        _gauges("gpu_price", "The policy's price of the next GPU.", "gpu_type", now.prices),
    ]


def _ratios(history: History) -> Metric:
    now = history.now
    return _gauges(
        "gpu_effective_throughput_ratio",
        "Expected throughput of jobs on a GPU type, relative to the fastest type they could have.",
        "gpu_type",
        throughput_ratios(history.gangs(), now.jobs, now.nodes),
    )


def _held(history: History) -> list[Metric]:
    told: list[Metric] = []
    held = [row.held for row in history.rounds if row.held is not None]
    if held:
        told.append(_gauge("held_jobs", "Jobs that hadard holds.", held[-1]))
    expired = [row.expired for row in history.rounds if row.expired is not None]
    if expired:
        words = "Jobs released by the reaper."
        told.append(CounterMetricFamily("hadar_holds_expired", words, value=expired[-1]))
    return told


def _averages(history: History, counts: Counts) -> list[Metric]:
    if all(row.averages is None for row in history.rounds):
        return []
    words = "Parameter averagings of forked jobs."
    return [CounterMetricFamily("hadar_averages", words, value=counts.averages)]


def _counted(counts: Counts) -> list[Metric]:
    decisions = CounterMetricFamily(
        "hadar_decisions",
        "Actions by outcome; a gang of several GPU types counts for each.",
        labels=["action", "status", "partition", "gpu_type"],
    )
    for labels, number in sorted(counts.decisions.items()):
        decisions.add_metric([clean(label) for label in labels], number)
    commands = CounterMetricFamily(
        "hadar_slurm_commands",
        "Slurm's commands by what came of them.",
        labels=["command", "answer"],
    )
    for (program, answer), number in sorted(counts.commands.items()):
        commands.add_metric([program, answer], number)
    ended = CounterMetricFamily("hadar_ended_jobs", "Jobs that have ended.", labels=["state"])
    for state, number in counted(counts.ended.elements(), ENDS).items():
        ended.add_metric([state], number)
    return [
        CounterMetricFamily("hadar_rounds", "Rounds.", value=counts.rounds),
        CounterMetricFamily("hadar_failed_rounds", "Rounds with an error.", value=counts.failed),
        CounterMetricFamily(
            "hadar_solver_fallback", "Rounds decided greedily.", value=counts.fallbacks
        ),
        decisions,
        commands,
        ended,
        _histogram(
            "round_duration_seconds", "Duration of a round without waiting.", counts.round_s
        ),
        _histogram("solver_duration_seconds", "Duration of the policy's decision.", counts.plan_s),
    ]


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hadar_{name}", words, value=float(value))


def _gauges(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"hadar_{name}", words, labels=[label])
    for key, value in values.items():
        family.add_metric([clean(key)], float(value))
    return family


def _histogram(name: str, words: str, seen: Histogram) -> Metric:
    return HistogramMetricFamily(
        f"hadar_{name}", words, buckets=seen.cumulated(), sum_value=seen.sum_s
    )
