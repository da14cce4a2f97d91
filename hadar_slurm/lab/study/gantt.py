"""Gantt charts of `hadar demo` and `hadar compare`: one row per GPU, one colour per job.

The colours of text and lines are those of matplotlib's settings. Needs the extra `plots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from hadar_slurm.lab.study.occupancy import Occupancy
from hadar_slurm.lab.study.summary import HOUR_S
from hadar_slurm.policies.solver import Floats

_IDLE = "#e9ebee"
# A bar shorter than this fraction of the picture has no room for a job's name.
_NAME_SHARE = 0.018
# A job's size in GPU-hours, from small to large; both ends stand out against idle GPUs.
_SIZES = LinearSegmentedColormap.from_list(
    "sizes", [colormaps["plasma"](x) for x in np.linspace(0.12, 0.93, 64)]
)


def draw_by_name(path: Path, panels: Mapping[str, Occupancy], names: Sequence[str]) -> None:
    """Write a PNG with a panel for each title, in seconds; jobs carry their names."""
    figure = Figure(figsize=(13, 0.5 + 4.6 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    colours = colormaps["tab20"](np.arange(len(names)) % 20)
    end_s = max(seen.end_s for seen in panels.values())
    for axes, (title, seen) in zip(all_axes, panels.items(), strict=True):
        _draw_rows(axes, seen, colours, until=end_s, unit_s=1.0, idle=_IDLE)
        axes.set_title(title, loc="left")
        _mark_jobs(axes, seen, names, end_s)
        _mark_groups(axes, [(f"{gpu_type}  {node}", count) for node, gpu_type, count in seen.slots])
    all_axes[-1].set_xlabel("seconds since the start of the run; bars show the job's number")
    figure.savefig(path, dpi=110)


def draw_by_size(
    figure: Figure, seen: Occupancy, gpu_hours: Floats, *, until_h: float, idle: str
) -> None:
    """Draw on `figure`, in hours up to `until_h`, jobs coloured by their size."""
    # Large jobs fill most of the area, small ones are most of the jobs: the root shows both.
    norm = PowerNorm(0.5, 0.0, max(float(gpu_hours.max()), 1e-2))
    axes = figure.subplots()
    axes.grid(visible=False)
    _draw_rows(axes, seen, _SIZES(norm(gpu_hours)), until=until_h, unit_s=HOUR_S, idle=idle)
    counts: dict[str, int] = {}
    for _, gpu_type, count in seen.slots:
        counts[gpu_type] = counts.get(gpu_type, 0) + count
    _mark_groups(axes, [(f"{count} {gpu_type}", count) for gpu_type, count in counts.items()])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("hours since the first submission")
    bar = figure.colorbar(ScalarMappable(norm, _SIZES), ax=axes, pad=0.01, fraction=0.03, aspect=14)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(lambda x, _: f"{x:g}")
    bar.set_label("job's GPU-hours")


def _draw_rows(
    axes: Axes, seen: Occupancy, colours: Floats, *, until: float, unit_s: float, idle: str
) -> None:
    """Draw each job's GPUs in the colour of its number, and a line where the last job ends."""
    num_gpus, end = len(seen.jobs), seen.end_s / unit_s
    drawn = np.vstack([colours, np.zeros(4)])[seen.jobs]
    axes.axhspan(-0.5, num_gpus - 0.5, color=idle, linewidth=0, zorder=0)
    plain: Any = {"aspect": "auto", "interpolation": "none", "resample": False, "zorder": 1}
    axes.imshow(drawn, extent=(0.0, end, num_gpus - 0.5, -0.5), **plain)
    axes.axvline(end, color=rcParams["text.color"], linewidth=1.0, zorder=3)
    axes.set_xlim(0, until * 1.01)
    axes.set_ylim(num_gpus - 0.5, -0.5)


def _mark_groups(axes: Axes, groups: Sequence[tuple[str, int]]) -> None:
    """Label groups of rows on the left, from top to bottom, with lines between them."""
    begins = list(accumulate((count for _, count in groups), initial=0))
    for begin in begins[1:-1]:
        axes.axhline(begin - 0.5, color=rcParams["text.color"], linewidth=0.8)
    middles = [(begin + end - 1) / 2 for begin, end in pairwise(begins)]
    axes.set_yticks(middles, [label for label, _ in groups])
    axes.tick_params(axis="y", length=0)


def _mark_jobs(axes: Axes, seen: Occupancy, names: Sequence[str], end_s: float) -> None:
    """Draw white lines between rows and jobs, and a job's name in every bar with room for it."""
    for row, jobs in enumerate(seen.jobs):
        changes = np.flatnonzero(np.diff(jobs)) + 1
        axes.axhline(row - 0.5, color="white", linewidth=1.2)
        axes.vlines(changes * seen.bin_s, row - 0.5, row + 0.5, color="white", linewidth=0.6)
        for first, last in pairwise([0, *changes.tolist(), len(jobs)]):
            if jobs[first] >= 0 and (last - first) * seen.bin_s > _NAME_SHARE * end_s:
                middle_s = (first + last) / 2 * seen.bin_s
                axes.text(middle_s, row, names[jobs[first]], ha="center", va="center", fontsize=7)
