"""The lists: which there are, and which of them the simulated rules may be fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_fidelity.drawn import MODERN, OLDER, Kind, Window, of_fastest, of_kind, of_trace
from slurm_fidelity.jobs import JobList, Pool

_Maker = Callable[[str, Path], JobList]
_THREE = (Pool("h100", 2, 8), Pool("a100", 4, 8), Pool("v100", 4, 8))
_SPEEDS = {"h100": 2.0, "a100": 1.0, "v100": 0.45}
_OVER_NODES = {1: 0.25, 8: 0.35, 16: 0.3, 32: 0.1}
_WITHIN = {1: 0.25, 2: 0.25, 3: 0.1, 4: 0.2, 6: 0.05, 8: 0.15}
_UNEVEN = {1: 0.2, 3: 0.2, 5: 0.15, 7: 0.1, 8: 0.15, 12: 0.1, 20: 0.1}


def draw_lists(data: Path) -> tuple[dict[str, JobList], list[str]]:
    """Return all lists by name, and why others could not be drawn."""
    found: dict[str, JobList] = {}
    missing: list[str] = []
    for name, make in _MAKERS.items():
        try:
            found[name] = make(name, data)
        except FileNotFoundError as error:
            missing.append(
                f"{name}: {error.filename}, which is not part of the project, is not there"
            )
    return found, missing


def _window(window: Window, **options: object) -> _Maker:
    return lambda name, data: of_trace(name, window, data, **options)


def _kind(about: str, kind: Kind, **options: object) -> _Maker:
    return lambda name, data: of_kind(name, about, kind, **options)  # type: ignore[arg-type]


def _drawn(gangs: Mapping[int, float], *, gpus: int = 8, **rest: Any) -> Kind:
    pools = tuple(pool._replace(gpus=gpus) for pool in _THREE)
    return Kind(gangs=gangs, pools=pools, speeds=_SPEEDS, **rest)


_PREEMPTING = _drawn(
    {1: 0.25, 2: 0.2, 4: 0.25, 8: 0.2, 16: 0.1}, gap_h=0.06, number=70, median_h=2.0, longest_h=6.0,
    compression=200, urgent=0.25,
)  # fmt: skip

_MAKERS: Mapping[str, _Maker] = {
    "ef06": _window(
        Window("ef06", OLDER, 110, 80, 260, 2, compression=330),
        form="nodes", fairshare="tree", is_for_tuning=True,
    ),
    "ef01": _window(
        Window("ef01", MODERN, 0, 80, 3600, 8, compression=200), form="gpus", fairshare="tree"
    ),
    "philly1": _window(
        Window("philly1", OLDER, 0, 90, 2000, 8, compression=370), form="list", fairshare="tree"
    ),
    "openb": _window(
        Window("openb", MODERN, 0, 110, 1100, 8, longest_h=1.2, compression=32),
        form="nodes", choice="open", fairshare="tree", is_for_tuning=True,
    ),
    "over-nodes": _kind(
        "gangs over nodes, first in, first out",
        _drawn(_OVER_NODES, gap_h=0.4, number=60, median_h=1.7, longest_h=7.0),
        form="nodes", is_for_tuning=True,
    ),
    "over-nodes-list": _kind(
        "gangs over nodes of one type, first in, first out",
        _drawn(_OVER_NODES, gap_h=0.35, number=60, median_h=1.1, longest_h=4.0, compression=450),
        form="list",
    ),
    "uneven": _kind(
        "gangs of any number of GPUs, first in, first out",
        _drawn(_UNEVEN, gap_h=0.2, number=80, median_h=1.7, longest_h=6.0),
        form="gpus", is_for_tuning=True,
    ),
    "within": _kind(
        "gangs within a node, five users",
        _drawn(_WITHIN, gap_h=0.065, number=100, median_h=2.2, longest_h=8.0, compression=280),
        form="nodes", choice="open", fairshare="tree",
    ),
    "within-classic": _kind(
        "gangs within a node, five users under classic fair share",
        _drawn(_WITHIN, gap_h=0.065, number=100, median_h=2.2, longest_h=8.0, compression=280),
        form="list", choice="open", fairshare="classic", is_for_tuning=True,
    ),
    "single": _kind(
        "single GPUs, five users",
        _drawn({1: 1.0}, gap_h=0.05, number=100, median_h=3.0, longest_h=8.0, gpus=2),
        form="gpus", fairshare="tree",
    ),
    "killed": _kind(
        "limits that suffice on the fastest type only",
        _drawn(_WITHIN, gap_h=0.15, number=70, median_h=5.0, longest_h=9.0),
        form="nodes", limit=of_fastest,
    ),
    "short-window": _kind(
        "backfill that looks two minutes ahead, that is 20 hours",
        _drawn(_OVER_NODES, gap_h=0.4, number=60, median_h=1.7, longest_h=7.0),
        form="nodes", bf_window_min=2,
    ),
    "preempted": _kind(
        "a quarter of the jobs in a partition that preempts, first in, first out",
        _PREEMPTING,
        form="nodes", preempts="requeue",
    ),
    "preempted-qos": _kind(
        "a quarter of the jobs of a QOS that preempts, first in, first out",
        _PREEMPTING,
        form="nodes", preempts="requeue", has_qos=True,
    ),
    "cancelled": _kind(
        "a quarter of the jobs of a QOS for which others are ended, first in, first out",
        _PREEMPTING,
        form="nodes", preempts="cancel", has_qos=True,
    ),
    "suspended": _kind(
        "a quarter of the jobs of a QOS for which others would be suspended, first in, first out",
        _PREEMPTING,
        form="nodes", preempts="suspend", has_qos=True,
    ),
    "priority-qos": _kind(
        "a quarter of the jobs of a QOS with priority, five users",
        _drawn(
            _WITHIN, gap_h=0.065, number=100, median_h=2.2, longest_h=8.0, compression=280,
            urgent=0.25,
        ),
        form="nodes", choice="open", fairshare="tree", has_qos=True, weight_qos=5_000,
    ),
}  # fmt: skip
