"""Reads hadard's heartbeat, for commands. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hadar_slurm.state.heartbeat import FILE_NAME, Heartbeat, LastRounds


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the heartbeat, or None if none can be read."""
    try:
        tree = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        partitions = tree["partitions"]
        return Heartbeat(
            int(tree["pid"]),
            str(tree["cluster"]),
            float(tree["good_until_s"]),
            str(tree["spool"]),
            None if partitions is None else tuple(map(str, partitions)),
            float(tree.get("good_for_s", math.inf)),
            str(tree.get("assignments", "")),
            {str(kind): str(text) for kind, text in tree.get("problems", {}).items()},
            tuple(map(str, tree.get("steered", ()))),
            {
                str(name): {str(key): float(value) for key, value in values.items()}
                for name, values in tree.get("gpu_types", {}).items()
            },
            tree.get("enrols") is True,
            {str(key): str(level) for key, level in tree.get("moves", {}).items()},
            {str(key): (float(g), float(e)) for key, (g, e) in tree.get("preemptible", {}).items()},
            None if tree.get("signed_s") is None else float(tree["signed_s"]),
            _last_rounds(tree.get("rounds", {})),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _last_rounds(tree: Mapping[str, Any]) -> LastRounds:
    succeeded_s, since_s = (
        None if tree.get(name) is None else float(tree[name]) for name in ("succeeded_s", "since_s")
    )
    part, fault = (str(tree.get(name, "")) for name in ("part", "fault"))
    return LastRounds(succeeded_s, int(tree.get("failed", 0)), since_s, part, fault)
