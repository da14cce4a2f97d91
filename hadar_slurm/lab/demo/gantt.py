"""The demo's picture: every GPU's time, both runs above each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed, and none may be there
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hadar_slurm.core.cluster import Cluster, Slot, natural_key
from hadar_slurm.lab.demo.runs import JobRun
from hadar_slurm.metrics import Segment

# A bar narrower than this share of the picture has no room for a job's number.
_LABEL_SHARE = 0.018


def draw_gantt(path: Path, cluster: Cluster, runs: Mapping[str, Sequence[JobRun]]) -> None:
    """Write a PNG with one panel a run: GPUs by type and node from top to bottom, time along."""
    end_s = max((run.ended_s for jobs in runs.values() for run in jobs), default=1.0)
    figure = Figure(figsize=(13, 0.5 + 4.6 * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (title, jobs) in zip(panels, runs.items(), strict=True):
        _draw_run(panel, cluster, jobs, end_s)
        last_s = max((run.ended_s for run in jobs), default=0.0)
        jcts = [run.jct_s for run in jobs]
        mean_s = sum(jcts) / len(jcts) if jcts else 0.0
        panel.set_title(
            f"{title}: all done after {last_s:.0f} s, mean JCT {mean_s:.1f} s", loc="left"
        )
        panel.axvline(last_s, color="black", linewidth=1.0, linestyle="--")
    panels[-1].set_xlabel("seconds since the run began; the number in a bar is the job's")
    figure.savefig(path, dpi=110)


def _draw_run(panel: Axes, cluster: Cluster, jobs: Sequence[JobRun], end_s: float) -> None:
    rows = _rows(cluster)
    colours = colormaps["tab20"]
    numbers = {run.job_id: run.job.name.removeprefix("demo-") for run in jobs}
    order = sorted(numbers, key=lambda job_id: natural_key(numbers[job_id]))
    for segment, places in _lanes(rows, (s for run in jobs for s in run.segments)):
        colour = colours(order.index(segment.job_id) % 20)
        width_s = segment.end_s - segment.start_s
        for row in places:
            panel.barh(
                row, width_s, left=segment.start_s, height=0.92, color=colour,
                edgecolor="white", linewidth=0.6,
            )  # fmt: skip
            if width_s > _LABEL_SHARE * end_s:
                panel.text(
                    segment.start_s + width_s / 2, row, numbers[segment.job_id],
                    ha="center", va="center", fontsize=7,
                )  # fmt: skip
    panel.set_yticks(
        [sum(lanes) / len(lanes) for lanes in rows.values()],
        [f"{slot.gpu_type}  {slot.node}" for slot in rows],
    )
    for lanes in rows.values():
        panel.axhline(max(lanes) + 0.5, color="0.7", linewidth=0.6)
    panel.set_ylim(max(max(lanes) for lanes in rows.values()) + 0.6, -0.6)
    panel.set_xlim(0, end_s * 1.01)
    panel.tick_params(axis="x", labelbottom=True)


def _rows(cluster: Cluster) -> dict[Slot, list[int]]:
    """Return the picture's rows of every slot: types together, one row a GPU."""
    rows: dict[Slot, list[int]] = {}
    count = 0
    kinds = list(dict.fromkeys(kind for node in cluster.nodes for kind in dict(node.gpus)))
    for kind in kinds:
        for node in cluster.nodes:
            for slot, num_gpus in node.slots:
                if slot.gpu_type == kind:
                    rows[slot] = list(range(count, count + num_gpus))
                    count += num_gpus
    return rows


def _lanes(
    rows: Mapping[Slot, Sequence[int]], segments: Iterable[Segment]
) -> Iterable[tuple[Segment, list[int]]]:
    """Yield each segment with rows that are free at its start: which GPU it was is not told."""
    free_from = {row: 0.0 for lanes in rows.values() for row in lanes}
    for segment in sorted(segments, key=lambda segment: segment.start_s):
        taken: list[int] = []
        for slot, count in segment.gang.slots:
            by_age = sorted(rows.get(slot, ()), key=lambda row: (free_from[row], row))
            taken += by_age[:count]
        for row in taken:
            free_from[row] = segment.end_s
        yield segment, sorted(taken)
