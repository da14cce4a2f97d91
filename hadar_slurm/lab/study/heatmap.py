"""Heat maps of ratios in the page of `hadar compare`. Needs the extra `plots`.

Cells are translucent, so that their text has the colour of the page's text in both themes.
"""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from hadar_slurm.lab.study.summary import Matrix

_BETTER, _WORSE = "#2f74d0", "#d62839"
# The colour is full at this ratio and at its inverse.
_FULL = 2.0
_MOST_ALPHA = 0.6


def draw(axes: Axes, matrix: Matrix) -> None:
    """Draw a cell for each ratio, with its text; the heading is the axes' title."""
    for y, values in enumerate(matrix.values):
        for x, value in enumerate(values):
            if value is not None:
                colour, alpha = colour_of(value)
                axes.add_patch(
                    Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, alpha=alpha, lw=0)
                )
            text = "-" if value is None else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5)
    axes.set_xticks(range(len(matrix.columns)), matrix.columns)
    axes.set_yticks(range(len(matrix.rows)), matrix.rows)
    axes.set(xlim=(-0.5, len(matrix.columns) - 0.5), ylim=(len(matrix.rows) - 0.5, -0.5))
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def colour_of(ratio: float) -> tuple[str, float]:
    """Return the colour of a ratio and its opacity, 0 at 1 and on a logarithmic scale."""
    share = math.log(max(ratio, 1e-9)) / math.log(_FULL)
    return _BETTER if share < 0 else _WORSE, _MOST_ALPHA * min(1.0, abs(share))
