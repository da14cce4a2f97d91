"""Draws the learning curves of the runs of quality.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed, and none may be there
from figures import Record
from matplotlib.figure import Figure

_LINES = {
    "single": ("#2f74d0", "solid"),
    "single, same time": ("#2f9150", (0, (5.0, 2.0))),
    "HadarE": ("#d9601a", "solid"),
}


def curves(by_cell: Mapping[str, Mapping[str, Mapping[int, Record]]], path: Path) -> None:
    """Draw held-out loss by steps and by time: means, in bands from the best to the worst seed."""
    if not by_cell:
        return
    figure = Figure(figsize=(3.1 * len(by_cell), 5.6), layout="constrained", facecolor="white")
    axes = figure.subplots(2, len(by_cell), squeeze=False)
    for column, (cell, names) in enumerate(by_cell.items()):
        for row, (of, label) in enumerate(((0, "steps of all copies"), (1, "time in s"))):
            place = axes[row][column]
            for name, (colour, dash) in _LINES.items():
                runs = [run["curve"] for run in names.get(name, {}).values()]
                if not runs:
                    continue
                x = [point[of] for point in runs[0]]
                losses = [[run[i][2] for run in runs] for i in range(len(x))]
                place.fill_between(
                    x, [min(at) for at in losses], [max(at) for at in losses],
                    color=colour, alpha=0.18, linewidth=0,
                )  # fmt: skip
                place.plot(x, [mean(at) for at in losses], color=colour, linestyle=dash, label=name)
            place.set_xlabel(label)
            place.set_xlim(left=0)
            place.spines[["top", "right"]].set_visible(False)
            place.grid(color="#dddddd", linewidth=0.5)
            if column == 0:
                place.set_ylabel("held-out loss, nats")
        axes[0][column].set_title(cell, loc="left", fontsize=10)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
    with mpl.rc_context({"svg.hashsalt": "hadare", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
