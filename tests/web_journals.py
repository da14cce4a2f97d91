"""Journal lines for tests of the web page, as `hadard` and `hadar simulate` write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NOW_S = 1_790_000_000.0
ROUND_S = 360.0
Tree = dict[str, Any]


def gang(text: str) -> Tree:
    """Return the gang in `n1:V100:2 n2:K80:1`."""
    tree: Tree = {}
    for part in text.split():
        node, gpu_type, count = part.split(":")
        tree.setdefault(node, {})[gpu_type] = int(count)
    return tree


def a_job(on: str = "", *, gpus: int = 1, phase: str = "", **more: Any) -> Tree:
    """Return a job: running on the gang `on`, or queued if `on` is empty."""
    return {
        "phase": phase or ("running" if on else "queued"),
        "user": "alice",
        "workload": "ResNet-50",
        "gpus": gpus,
        "submitted_s": NOW_S - 3600.0,
        "steps": 1000,
        "steps_done": 250.0,
        "restarts": 0,
        "holds": {"0": gang(on)} if on else {},
    } | more


def an_action(do: str, job: str, on: str, status: str = "done") -> Tree:
    """Return an action on copy 0 of a job."""
    return {"do": do, "job": job, "copy": 0, "gang": gang(on), "status": status, "detail": ""}


def a_line(
    number: int = 0,
    jobs: Mapping[str, Tree] | None = None,
    *,
    mode: str = "hold",
    actions: Iterable[Tree] = (),
    waiting: Mapping[str, str] | None = None,
    time_s: float | None = None,
    nodes: str = "n1:V100:2 n2:K80:2",
    **more: Any,
) -> Tree:
    """Return the line of round `number` of hadard, or with `mode` "" that of a simulation."""
    start_s = NOW_S if mode else 0.0
    line: Tree = {
        "version": 1,
        "round": number,
        "time_s": start_s + number * ROUND_S if time_s is None else time_s,
        "length_s": ROUND_S,
        "wake": "round end" if number else "start",
        "may_move": True,
        "policy": "hadar",
        "nodes": {name: {"gpus": gpus, "open": True} for name, gpus in gang(nodes).items()},
        "occupied": {},
        "jobs": dict(jobs or {}),
        "ended": {},
        "plan": {},
        "waiting": dict(waiting or {}),
        "figures": {"price.V100": 0.5, "price.K80": 0.0},
        "actions": list(actions),
        "durations_s": {"observe": 0.03, "plan": 0.25, "apply": 0.01},
        "errors": [],
    }
    return line | ({"mode": mode} if mode else {}) | more


def a_blind_line(number: int = 0, error: str = "squeue: timed out", **more: Any) -> Tree:
    """Return the line of a round in which Slurm did not answer."""
    line = a_line(number, **more)
    for name in ("nodes", "occupied", "jobs", "ended"):
        del line[name]
    return line | {"plan": None, "figures": {}, "errors": [error]}


def text_of(*lines: Tree) -> str:
    """Return lines as text of a journal file."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def write(path: Path, *lines: Tree) -> Path:
    """Append lines to a journal."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text_of(*lines))
    return path


def many_jobs(number: int) -> Tree:
    """Return `number` jobs: the first eight run on one GPU each, the others are queued."""
    places = [f"n{1 + i // 4}:{'V100' if i < 4 else 'K80'}:1" for i in range(8)]
    return {
        str(1000 + i): a_job(
            places[i] if i < len(places) else "", user=f"user{i % 40}", workload=f"work {i % 7}"
        )
        for i in range(number)
    }
