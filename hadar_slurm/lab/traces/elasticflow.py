"""ElasticFlow's traces (ASPLOS'23): CSV with a heading, one job a line."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.jobspec.identity import workload_name
from hadar_slurm.lab.traces.fields import TraceError, gang_size, seconds, shown, steps
from hadar_slurm.lab.traces.model import Trace, by_arrival
from hadar_slurm.lab.traces.speeds import SpeedTable

_NEEDED = ("job_id", "submission_time", "num_iteration", "model_name", "num_gpu", "duration")
_LEAST_S = 1e-3


def read_elasticflow(
    lines: Sequence[str], speeds: SpeedTable, origin: str, *, restart_cost_s: float = 30.0
) -> Trace:
    """Return a trace in ElasticFlow's format, times in seconds from the first submission.

    Columns by heading, in any order: job_id, submission_time (s), num_iteration, model_name,
    num_gpu, duration (s), and optionally batch_size; others are ignored. `duration` is the run time
    on `num_gpu` GPUs of the reference type of `speeds`, which converts it to other types. Rows may
    be unsorted. Raises TraceError with file, line, value and remedy.
    """
    jobs: list[JobSpec] = []
    places: dict[JobId, str] = {}
    for place, row in _rows(lines, origin):
        job_id = JobId(row["job_id"].strip())
        if not job_id:
            raise TraceError(f"{place}: job_id is empty; every job needs a unique one")
        if job_id in places:
            used = f"already used in {places[job_id]}; give each job a unique one"
            raise TraceError(f"{place}: job_id {shown(job_id)} is {used}")
        places[job_id] = place
        jobs.append(_job(job_id, row, place, speeds, restart_cost_s))
    if not jobs:
        raise TraceError(f"{origin}: no job in it; expected a line for each job below the heading")
    in_order, notes = by_arrival(jobs), _notes(jobs, speeds)
    if [job.job_id for job in in_order] != list(places):
        notes = ("lines are not in the order of submission_time; the jobs were sorted", *notes)
    assumed = speeds.assumed((), {job.workload for job in jobs})
    return Trace("elasticflow", in_order, places, notes=notes, speeds=assumed)


def _rows(lines: Sequence[str], origin: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield (place, values by column) of every line that is not blank."""
    reader = csv.reader(lines, strict=True)
    heading: list[str] = []
    place = f"{origin}:1"
    try:
        for values in reader:
            if any(value.strip() for value in values):
                if not heading:
                    heading = _heading(values, place)
                elif len(values) == len(heading):
                    yield place, dict(zip(heading, values, strict=True))
                else:
                    want = f"expected {len(heading)} as in the heading; was the line cut?"
                    raise TraceError(f"{place}: {len(values)} columns, {want}")
            place = f"{origin}:{reader.line_num + 1}"
    except csv.Error as error:
        raise TraceError(f"{place}: not CSV: {error}; was the line cut?") from error


def _heading(values: Sequence[str], place: str) -> list[str]:
    heading = [value.strip().lower() for value in values]
    if missing := [name for name in _NEEDED if name not in heading]:
        want = f"expected at least {','.join(_NEEDED)}"
        raise TraceError(f"{place}: no column {', '.join(missing)} in the heading; {want}")
    if twice := [name for name in _NEEDED if heading.count(name) > 1]:
        raise TraceError(f"{place}: column {', '.join(twice)} twice in the heading; keep one")
    return heading


def _job(
    job_id: JobId, row: Mapping[str, str], place: str, speeds: SpeedTable, restart_cost_s: float
) -> JobSpec:
    model = row["model_name"].strip()
    if not model:
        raise TraceError(f"{place}: model_name is empty; give any name, such as bert")
    batch = row.get("batch_size", "").strip()
    name = workload_name(model, steps(batch, place, "batch_size") if batch else None)
    num_gpus = gang_size(row["num_gpu"], place, "num_gpu")
    total_steps = steps(row["num_iteration"], place, "num_iteration")
    duration_s = seconds(row["duration"], place, "duration")
    if duration_s < _LEAST_S:
        want = "expected seconds above 0; remove the job"
        raise TraceError(f"{place}: duration {row['duration']!r}: {want}")
    pace, ran_on = total_steps / duration_s, (speeds.reference,)
    return JobSpec(
        job_id=job_id,
        num_gpus=num_gpus,
        total_steps=total_steps,
        throughputs=speeds.throughputs(name, num_gpus=num_gpus, steps_per_s=pace, ran_on=ran_on),
        submitted_s=seconds(row["submission_time"], place, "submission_time"),
        restart_cost_s=restart_cost_s,
        workload=name,
    )


def _notes(jobs: Sequence[JobSpec], speeds: SpeedTable) -> tuple[str, ...]:
    """Return notes on the assumed speeds of the models."""
    by_family: defaultdict[str, set[str]] = defaultdict(set)
    for name in {job.workload for job in jobs}:
        model = name.partition(" (batch size")[0]
        by_family[speeds.family(name) or "the mean of all models"].add(model)
    families = "; ".join(f"{k} for {', '.join(sorted(of))}" for k, of in sorted(by_family.items()))
    return (
        f"durations are run times on {speeds.reference}; other GPU types have the relative speeds "
        f"of {families}",
        *speeds.note(()),
    )
