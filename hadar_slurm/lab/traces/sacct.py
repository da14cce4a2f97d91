"""Slurm's accounting history: the output of `sacct -P`, with its heading.

    sacct -a -X -P -S 2024-03-01 -E 2024-04-01 \
        -o JobID,User,Account,Partition,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,\
    State

A record becomes a job with the recorded work: one step a second on the GPUs that it held, for as
long as it held them, whatever its final state. The heading names the fields, in any order; JobName,
WorkDir, Container, SubmitLine and Comment say which jobs are the same work (jobspec/identity.py),
QOS counts under plain Slurm, and further fields are ignored. Records that are no jobs are counted
and reported.
"""

from __future__ import annotations

import math
import re
import shlex
from calendar import monthrange, timegm
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.identity import Shown, workload_of_shown
from hadar_slurm.jobspec.units import parse_count
from hadar_slurm.lab.traces.fields import (
    MAX_GANG,
    MAX_TIME_S,
    TraceError,
    gang_size,
    seconds,
    shown,
)
from hadar_slurm.lab.traces.limits import have_limits
from hadar_slurm.lab.traces.model import RecordedTimes, Skipped, Tally, Trace, by_arrival
from hadar_slurm.lab.traces.speeds import SpeedTable
from hadar_slurm.submit.options import split_options

_NEEDED = ("jobid", "submit", "elapsedraw", "alloctres", "state")
# Required and optional fields, as spelled in messages.
_SPELLED = (
    "JobID,User,Account,Partition,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,State"
)

_JOB_ID = re.compile(r"[0-9]+(_([0-9]+|\[[^\]]*\]?))?(\+[0-9]+)?")
_STEP_ID = re.compile(r"[0-9][0-9_+]*\.\S+")
_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=\s]+))?", re.IGNORECASE)
_NUM_NODES = re.compile(r"(?:^|,)node=([0-9]{1,7})(?=,|$)")
_TIME = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})")
_UNKNOWN = frozenset({"", "unknown", "none", "n/a"})
_NO_LIMIT = _UNKNOWN | {"unlimited", "partition_limit", "invalid"}
# Free text: as the last field, it may have separators and line breaks in it.
_FREE = frozenset({"jobname", "workdir", "submitline", "comment", "container"})
_BEGINS = re.compile(r"[0-9][0-9_+.\[\]a-z-]*\|")
# States of jobs that have not ended.
_GOING_ON = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "RESIZING"})

Record = Mapping[str, str]
# The GPUs of a record by type; those of type "" count as the reference type.
Gpus = Mapping[str, int]


def read_sacct(
    lines: Sequence[str], speeds: SpeedTable, origin: str, *, restart_cost_s: float = 30.0
) -> Trace:
    """Return a workload from Slurm's history, times in seconds from the first submission.

    JobID, Submit, ElapsedRaw, AllocTRES and State are required. GPUs without a type count as the
    reference type of `speeds`. Raises TraceError with file, line, value and remedy.
    """
    jobs: list[JobSpec] = []
    places: dict[JobId, str] = {}
    held: dict[JobId, frozenset[str]] = {}
    started_s: dict[JobId, int | None] = {}
    left_out, counts = Tally(), Counter[str]()
    gpu_types: set[str] = set()
    for place, record in records_of(lines, origin, left_out):
        job_id = JobId(record["jobid"].strip())
        why_not, gpus = _usable(record, place)
        if why_not:
            left_out.add(why_not, f"{place}: {job_id}")
            continue
        gpu_types.update(gpus)
        places[job_id] = place
        held[job_id] = frozenset(speeds.here(gpu_type) for gpu_type in gpus)
        job = _job(job_id, record, gpus, place, speeds, restart_cost_s)
        jobs.append(replace(job, limit_s=_limit_s(record, place)))
        started_s[job_id] = parse_time(record.get("start", "").strip())
        counts.update(_assumptions(record, gpus, job_id))
    skipped = left_out.skipped()
    _check_any(jobs, skipped, origin)
    if have_limits(jobs):
        counts["unlimited"] = sum(job.limit_s == math.inf for job in jobs)
    notes = _notes(counts, jobs, gpu_types - {""}, speeds)
    assumed = speeds.assumed(gpu_types - {""}, {job.workload for job in jobs})
    return Trace(
        "sacct",
        jobs=by_arrival(jobs),
        places=places,
        skipped=skipped,
        notes=notes,
        speeds=assumed,
        held=held,
        recorded=_recorded(jobs, started_s),
    )


def _check_any(jobs: Sequence[JobSpec], skipped: Sequence[Skipped], origin: str) -> None:
    if not jobs:
        reasons = "".join(f"; {part}" for part in skipped)
        raise TraceError(
            f"{origin}: no job in it that held GPUs{reasons}; does AccountingStorageTRES in "
            "slurm.conf name gres/gpu?"
        )


def _recorded(
    jobs: Iterable[JobSpec], started_s: Mapping[JobId, int | None]
) -> dict[JobId, RecordedTimes]:
    """Return the times of jobs whose start is known; each trains a step a second."""
    found = ((job, started_s[job.job_id]) for job in jobs)
    return {
        job.job_id: RecordedTimes(
            start_s - job.submitted_s, start_s - job.submitted_s + job.total_steps
        )
        for job, start_s in found
        if start_s is not None and start_s >= job.submitted_s
    }


def records_of(lines: Iterable[str], origin: str, left_out: Tally) -> Iterator[tuple[str, Record]]:
    """Yield (place, fields) of the records of jobs, each job once; count others in `left_out`."""
    heading: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    for number, text in enumerate(lines, start=1):
        place, values = f"{origin}:{number}", text.split("|")
        if not text.strip():
            continue
        if not heading:
            heading = _heading(values, place)
            continue
        if heading[-1] in _FREE:
            if not _BEGINS.match(text) and text.split("|") != heading and seen:
                continue  # the rest of a submit line with line breaks
            values = text.split("|", len(heading) - 1)
        if len(values) != len(heading):
            raise TraceError(
                f"{place}: {len(values)} fields, expected {len(heading)} as in the heading; was "
                "the line cut, or is there a | or a line break within a value? Put SubmitLine "
                "last, and leave out other fields that users write freely, such as Comment"
            )
        if [value.lower() for value in values] == heading:
            left_out.add("repeated heading", place)
            continue
        record = dict(zip(heading, values, strict=True))
        name = record["jobid"].strip()
        if _STEP_ID.fullmatch(name):
            left_out.add("steps of jobs (sacct -X lists none)", f"{place}: {name}")
        elif not _JOB_ID.fullmatch(name):
            raise TraceError(
                f"{place}: JobID {shown(name)}: expected a Slurm job id, such as 123, 123_4 or "
                "123+0"
            )
        elif name not in seen:
            seen[name] = (place, text)
            yield place, record
        elif text == seen[name][1]:
            left_out.add("repeated record", f"{place}: {name}")
        else:
            raise TraceError(
                f"{place}: JobID {name} is already used in {seen[name][0]}, with other values; "
                "leave -D (--duplicates) out of sacct, and keep one record of each job"
            )


def parse_gpus(text: str, place: str, what: str = "AllocTRES") -> dict[str, int]:
    """Return GPUs by type in `cpu=8,gres/gpu=4,gres/gpu:v100=4,mem=64G`; "" are untyped ones.

    `gres/gpu` is the sum of all types, listed ones included. A type may be a MIG slice, such as
    `1g.5gb`.
    """
    total, by_type = 0, Counter[str]()
    for part in text.split(",") if text.strip() else ():
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise TraceError(
                f"{place}: {what} {shown(part)}: expected NAME=COUNT, such as gres/gpu:v100=2; was "
                "the line cut?"
            )
        match = _GPU.fullmatch(key)
        if match is None or value == "0":
            continue
        count = gang_size(value, place, f"{what} {shown(key)}")
        if match["type"]:
            by_type[match["type"]] += count
        else:
            total += count
    if max(total, by_type.total()) > MAX_GANG:
        raise TraceError(f"{place}: {what} {shown(text)}: expected at most {MAX_GANG} GPUs")
    untyped = total - by_type.total()
    return {**by_type, "": untyped} if untyped > 0 else dict(by_type)


@lru_cache(maxsize=100_000)
def parse_time(text: str) -> int | None:
    """Return the seconds of `2024-03-01T12:00:00` or of a plain number; None for other texts.

    The first has no time zone and is read as UTC, so only differences are meaningful.
    """
    if text.isascii() and text.isdigit() and len(text) <= len(str(int(MAX_TIME_S))):
        return int(text)
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    is_day = year >= 1970 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
    if not (is_day and hour < 24 and minute < 60 and second <= 60):
        return None
    return timegm((year, month, day, hour, minute, second))


def _heading(values: Sequence[str], place: str) -> list[str]:
    heading = [name.strip().lower() for name in values]
    if missing := [name for name in _NEEDED if name not in heading]:
        raise TraceError(
            f"{place}: no field {', '.join(missing)} in the heading; expected what sacct -P -o "
            f"{_SPELLED} prints, with its heading (no -n)"
        )
    if twice := [name for name in heading if name and heading.count(name) > 1]:
        raise TraceError(f"{place}: field {twice[0]} twice in the heading; name it once in -o")
    return heading


def _usable(record: Record, place: str) -> tuple[str, Gpus]:
    """Return why a record is no job to replay ("" if it is one), and its GPUs."""
    elapsed_s, submitted = _elapsed_s(record, place), record["submit"].strip()
    if parse_time(submitted) is None and submitted.lower() not in _UNKNOWN:
        raise TraceError(
            f"{place}: Submit {shown(submitted)}: expected a time such as 2024-03-01T12:00:00; "
            "unset SLURM_TIME_FORMAT for sacct, or set it to %s"
        )
    gpus = _gpus(record, place)
    has_start = record.get("start", "").strip().lower() not in _UNKNOWN
    faults = {
        "never started": elapsed_s == 0 and not has_start,
        "ran for less than a second": elapsed_s == 0,
        "held no GPU": not gpus,
        "time of submission not known": parse_time(submitted) is None,
    }
    return next((fault for fault, is_so in faults.items() if is_so), ""), gpus


def _elapsed_s(record: Record, place: str) -> int:
    text = record["elapsedraw"].strip()
    if text.lower() in _UNKNOWN or text == "0":
        return 0
    seconds(text, place, "ElapsedRaw")
    return parse_count(text, f"{place}: ElapsedRaw", TraceError)


def _gpus(record: Record, place: str) -> Gpus:
    """Return the allocated GPUs of a record, with the requested types if they lack types."""
    given, asked = record["alloctres"], record.get("reqtres", "")
    held = parse_gpus(given, place) if given.strip() else parse_gpus(asked, place, "ReqTRES")
    if held.keys() == {""}:
        wanted = parse_gpus(asked, place, "ReqTRES")
        if sum(wanted.values()) == held[""] and "" not in wanted:
            return wanted
    return held


def _job(
    job_id: JobId, record: Record, gpus: Gpus, place: str, speeds: SpeedTable, restart_cost_s: float
) -> JobSpec:
    submitted_s = parse_time(record["submit"].strip())
    assert submitted_s is not None, "unusable records were sorted out"
    # The first of job name, account and partition that the table of rates has.
    names = (record.get(key, "").strip() for key in ("jobname", "account", "partition"))
    workload = next((name for name in names if name and speeds.names(name)), "")
    num_gpus, nodes = sum(gpus.values()), _NUM_NODES.search(record["alloctres"])
    ran_on = {gpu_type or speeds.reference for gpu_type in gpus}
    was_spread = nodes is not None and 1 < int(nodes[1]) <= num_gpus
    throughputs = speeds.throughputs(
        workload, num_gpus=num_gpus, steps_per_s=1.0, ran_on=ran_on, was_spread=was_spread
    )
    return JobSpec(
        job_id=job_id,
        num_gpus=num_gpus,
        total_steps=_elapsed_s(record, place),
        throughputs=throughputs,
        # Its time limit was right or wrong there; a mixed gang was as slow as its slowest type.
        limit_type=min(sorted(ran_on), key=lambda name: throughputs.on(name, num_gpus)),
        submitted_s=float(submitted_s),
        restart_cost_s=restart_cost_s,
        workload=workload,
        name=_identity(record),
        user=record.get("user", "").strip(),
        qos=record.get("qos", "").strip(),
    )


def _identity(record: Record) -> str:
    """Return the workload that hadard would call the job's; "" where the record says nothing."""
    comment = record.get("comment", "").strip()
    described = decode_or_none(comment)
    if described is not None and described.workload:
        return described.workload
    shown = Shown(
        name=record.get("jobname", "").strip(),
        command=_command(record.get("submitline", "")),
        directory=record.get("workdir", "").strip(),
        container=record.get("container", "").strip(),
        comment=comment if described is None else described.comment,
    )
    return workload_of_shown(shown) if shown.name or shown.command else ""


def _command(line: str) -> str:
    """Return what a submit line runs: the script with its arguments, or what --wrap was given."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    options, rest = split_options(words[1:])
    wrapped = next((o.value for o in options if o.name == "wrap" and o.value), "")
    return wrapped or shlex.join(word for word in rest if word != "--")


def _limit_s(record: Record, place: str) -> float:
    """Return a job's time limit in seconds; inf if it has none."""
    text = (record.get("timelimit") or record.get("timelimitraw") or "").strip()
    if text.lower() in _NO_LIMIT or not text.strip("0:-"):
        return math.inf
    limit_s = parse_time_limit(text)
    if limit_s is None or limit_s > MAX_TIME_S:
        raise TraceError(
            f"{place}: Timelimit {shown(text)}: expected a time limit such as 1-12:00:00, or "
            "UNLIMITED; leave it out of -o if it is not known"
        )
    return limit_s


def _assumptions(record: Record, gpus: Gpus, name: str) -> Iterable[str]:
    word = (record["state"].upper().split(maxsplit=1) or ["UNKNOWN"])[0]
    found = {
        "going on": word in _GOING_ON,
        f"state {word}": word not in {*_GOING_ON, "COMPLETED"},
        "untyped": "" in gpus,
        "mixed": len(gpus) > 1,
        "het": "+" in name,
    }
    return [assumption for assumption, is_so in found.items() if is_so]


def _notes(
    counts: Counter[str], jobs: Iterable[JobSpec], gpu_types: Iterable[str], speeds: SpeedTable
) -> tuple[str, ...]:
    named = ", ".join(sorted({job.workload for job in jobs if job.workload}))
    notes = [
        "each job trains for as long as it held its GPUs; on other GPU types its throughput "
        "differs by their relative speeds" + f", for {named} by their own" * bool(named)
    ]
    states = sorted(key for key in counts if key.startswith("state "))
    if ends := ", ".join(f"{counts[key]} {key.removeprefix('state ')}" for key in states):
        notes.append(f"jobs that did not complete, with their run time: {ends}")
    sentences = (
        ("going on", "jobs that had not ended, with their run time so far"),
        ("unlimited", "jobs without a time limit, sized as with the longest of all"),
        ("untyped", f"jobs on GPUs without a type, counted as {speeds.reference} (--reference)"),
        ("mixed", "jobs on several types, with the speed of the slowest"),
        ("het", "components of heterogeneous jobs, treated as separate jobs"),
    )
    notes.extend(f"{text}: {counts[key]}" for key, text in sentences if counts[key])
    return (*notes, *speeds.note(gpu_types))
