"""The demo's picture: which job held which GPU in each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from hadar_slurm.core.cluster import Cluster, natural_key
from hadar_slurm.lab.demo.report import killed_text
from hadar_slurm.lab.demo.runs import JobRun
from hadar_slurm.lab.study.gantt import draw_by_name
from hadar_slurm.lab.study.occupancy import Occupancy, occupancy


def draw_runs(path: Path, cluster: Cluster, runs: Mapping[str, Sequence[JobRun]]) -> None:
    """Write a PNG with one panel per run; each bar shows its job's number."""
    names = sorted({run.job.name for jobs in runs.values() for run in jobs}, key=natural_key)
    panels: dict[str, Occupancy] = {}
    for title, jobs in runs.items():
        end_s = max(run.ended_s for run in jobs)
        segments = [segment for run in jobs for segment in run.segments]
        numbers = {run.job_id: names.index(run.job.name) for run in jobs}
        seen = occupancy(segments, cluster, numbers, start_s=0.0, end_s=end_s)
        if seen is not None:
            mean_s, killed = fmean(run.jct_s for run in jobs), killed_text(jobs)
            heading = f"{title}: all done after {end_s:.0f} s, mean JCT {mean_s:.1f} s"
            panels[f"{heading}, ended by limit: {killed}" if killed else heading] = seen
    draw_by_name(path, panels, [name.removeprefix("demo-") for name in names])
