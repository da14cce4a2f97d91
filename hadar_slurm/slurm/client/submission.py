"""Reads what jobs asked for beside GPUs, as far as only enrolled jobs need it."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.slurm.client.parse import NOTHING, split_job_details
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.squeue import Fields, squeue
from hadar_slurm.slurm.client.state import SHOW_JOBS

SUBMISSION = Fields(
    "JobID JobArrayID TimeLimit NumTasks NTPerNode OverSubscribe tres-alloc",
    "Name Command WorkDir Container",
)
_LEAST_NODES = re.compile(r"(?:^|,)node=(\d+)(?=,|$)")
# What squeue shows of a job that shares its nodes with those of others. From 25.05 on it shows NO
# for every job, and only scontrol says it (26.05.5).
_SHARES = ("OK", "YES")
_SCONTROL_TELLS_FROM = (25, 5)
# From here on a number of tasks stands for none.
_NO_NUMBER = 0xFFFE


@dataclass(frozen=True, slots=True)
class Submission:
    """What a job asked for beside GPUs and nodes."""

    name: str = ""
    # In seconds; 0: none. Where the job gives none, that of its partition.
    limit_s: float = 0.0
    num_tasks: int = 1
    # 0: not given.
    tasks_per_node: int = 0
    # The least number of nodes; 0: not known. Of a pending job squeue's NumNodes is an estimate,
    # such as the most that --nodes allows (22.05.8); the requested resources are not.
    least_nodes: int = 0
    # It shares its nodes with no job, or only with its user's own.
    is_exclusive: bool = False
    # What srun or a batch job runs, with its arguments; salloc shows none (22.05.8).
    command: str = ""
    directory: str = ""
    container: str = ""


def read_submissions(
    runner: Runner, version: tuple[int, int], job: JobId | None = None
) -> dict[JobId, Submission]:
    """Return the submission of each job and array task, or of one."""
    of_job = ("-t", "all", "-j", job) if job else ("-r", "-t", "all")
    text, mark = squeue(runner, SUBMISSION, *of_job)
    fields = [*map(SUBMISSION.named, SUBMISSION.texts(text, mark))]
    found = {JobId(field["JobArrayID"]): submission(field) for field in fields}
    if not fields or version < _SCONTROL_TELLS_FROM:
        return found
    number_of = {JobId(field["JobArrayID"]): field["JobID"] for field in fields}
    details = runner.run([*SHOW_JOBS, *([job] if job else [])])
    exclusive = exclusive_jobs(details, set(number_of.values()))
    return {
        key: replace(asked, is_exclusive=number_of[key] in exclusive)
        for key, asked in found.items()
    }


def submission(field: Mapping[str, str]) -> Submission:
    """Return a job's submission from the fields of squeue's output; raises SlurmOutputError."""
    found = _LEAST_NODES.search(field["tres-alloc"])
    try:
        return Submission(
            name=field["Name"],
            limit_s=parse_time_limit(field["TimeLimit"]) or 0.0,
            num_tasks=_number(field["NumTasks"]) or 1,
            tasks_per_node=_number(field["NTPerNode"]),
            least_nodes=int(found[1]) if found else 0,
            is_exclusive=field["OverSubscribe"] not in _SHARES,
            command=_text(field["Command"]),
            directory=_text(field["WorkDir"]),
            container=_text(field["Container"]),
        )
    except ValueError as error:
        raise SlurmOutputError(f"squeue: {error}", repr(field)) from error


def _text(text: str) -> str:
    return "" if text in NOTHING else text


def _number(text: str) -> int:
    """Return a number of tasks; 0 for none."""
    number = 0 if text in NOTHING else int(text)
    return number if number < _NO_NUMBER else 0


_EXCLUSIVE = re.compile(r" Exclusive=(?!NO )[A-Z]")


def exclusive_jobs(text: str, known: Container[str]) -> frozenset[str]:
    """Return the numbers of the jobs with whole nodes, from the text of `split_job_details`.

    A job whose texts imitate that is one of them.
    """
    details = split_job_details(text, known)
    return frozenset(number for number, line in details.items() if _EXCLUSIVE.search(line))
