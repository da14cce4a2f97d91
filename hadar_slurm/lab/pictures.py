"""Whether pictures can be drawn: matplotlib comes with the extra `plots` only."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console


def can_draw(console: Console) -> bool:
    """Whether matplotlib is installed; prints how to install it if not."""
    is_there = find_spec("matplotlib") is not None
    if not is_there:
        said = "pictures need matplotlib: pip install 'hadar_slurm[plots]'"
        console.print(said, soft_wrap=True, highlight=False, markup=False)
    return is_there
