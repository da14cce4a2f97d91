"""hadar explain: why a job waits, when it will start, and what would change that."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import known_jobs
from hadar_slurm.cli.release import ConfigOption, JsonOption
from hadar_slurm.cli.status import (
    JournalOption,
    last_lines,
    life_of,
    problem_lines,
    warnings,
)
from hadar_slurm.config import Config, read_config_to_answer
from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.daemon.world import policy_of
from hadar_slurm.errors import SlurmError, UsageError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.journal import Line
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.slurm.client.job_record import JobRecord, record_of
from hadar_slurm.slurm.client.parse import HOLDING_STATES
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.status.ended import EndedJob, ended_by_journal, ended_by_slurm
from hadar_slurm.status.explain import NAMED, Explanation, explain
from hadar_slurm.status.explain_text import print_ended, print_explanation
from hadar_slurm.status.health import standing_of
from hadar_slurm.status.journal_search import newest_with
from hadar_slurm.status.status import current


class Answer(StrEnum):
    """What is known of a job; exit status 0 for FOUND and ENDED, else 1."""

    FOUND = "found"
    ENDED = "ended"
    LEFT = "left to Slurm"
    NOT_TAKEN = "not taken by hadard"
    ARRAY = "array"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Slurm:
    """Slurm's record of the job; `fault` says why the query failed."""

    record: JobRecord | None = None
    fault: str = ""
    was_asked: bool = True

    @property
    def words(self) -> str | None:
        if not self.was_asked:
            return None
        if self.fault:
            return f"unknown: {self.fault}"
        return self.record.words if self.record else "no such job"

    @property
    def knows_it_ended(self) -> bool:
        return self.record is not None and not self.record.is_live

    def differs(self, job: Line) -> bool:
        """Return whether the journal and Slurm disagree on whether the job waits."""
        if self.record is None or not self.record.is_live or not job:
            return False
        holds = self.record.state in HOLDING_STATES
        return holds if job["phase"] == "queued" else not holds and job["phase"] == "running"

    @property
    def knows_no_such_job(self) -> bool:
        return self.was_asked and not self.fault and self.record is None


def explain_job(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Slurm's job id.", autocompletion=known_jobs),
    ],
    config: ConfigOption = None,
    journal: JournalOption = None,
    *,
    limit: Annotated[
        float, typer.Option(min=0, metavar="S", help="Time limit of the forecast in seconds.")
    ] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Show why a job waits, its throughput on each GPU type, the jobs ahead, and its start time.

    Uses the last round in hadard's journal (with --journal, in that of a simulation) and Slurm's
    own record. For a job that has ended, shows how and when. Status 1 if the job is left to Slurm
    or unknown.
    """
    chosen = read_config_to_answer(config)
    path = journal or chosen.journal
    lines, fault = last_lines(path)
    now_s = time.time()
    name, line = _found(current(lines), job)
    # A copy of a forked job may have ended while the job goes on.
    slurm = _Slurm(was_asked=False) if journal else _ask_slurm(chosen, name)
    if fault and not slurm.knows_it_ended:
        raise UsageError(f"the journal {fault}; operators can read it, or give --journal")
    ended = None
    if slurm.knows_it_ended and slurm.record is not None:
        ended = ended_by_slurm(name, slurm.record)
    elif line is None or slurm.knows_no_such_job:
        name, line, ended = _searched(path, lines, job, slurm)
    life = None if journal else life_of(chosen, now_s)
    is_alive = None if life is None else bool(life["alive"])
    newest = line or next(reversed(lines), None)
    standing = standing_of(newest, now_s, hadard_alive=is_alive)
    differs = line is not None and slurm.differs(line["jobs"].get(name, {}))
    found = None
    if ended is None and line is not None:
        policy = policy_of(chosen) if chosen.policy == line["policy"] else _policy(line)
        forecasts = is_alive is not False and not differs
        found = explain(line, JobId(name), policy, time.monotonic, limit, forecasts=forecasts)
    answer = _answer(lines, job, slurm, found, ended)
    if as_json:
        tree = {
            "answer": answer,
            "slurm": slurm.words,
            "slurm_differs": differs,
            **asdict(standing),
            "problems": life["problems"] if life else {},
            "found": asdict(found) if found else None,
            "ended": asdict(ended) if ended else None,
        }
        typer.echo(json.dumps(tree))
    else:
        console = Console(highlight=False, soft_wrap=True)
        if slurm.words is not None:
            console.print(f"Slurm: {slurm.words}", markup=False)
        if ended is not None:
            print_ended(console, ended, now_s)
        else:
            for text in [*warnings(life, standing), *problem_lines(life)] if life else ():
                console.print(text, markup=False)
        if found is not None:
            if differs and slurm.record is not None:
                console.print(f"changed since that round: it is {slurm.record.state} now")
            print_explanation(console, found, standing, differs=differs)
        elif ended is None:
            console.print(_why_not(lines, job, answer, slurm), markup=False)
    if answer not in (Answer.FOUND, Answer.ENDED):
        raise typer.Exit(1)


def _policy(line: Line) -> Policy:
    return make_policy(line["policy"])


def _names(job: str) -> tuple[str, ...]:
    """Return a job's possible names in the journal: its own, and that of its array if forked."""
    return tuple(dict.fromkeys((job, job.partition("_")[0])))


def _found(lines: Sequence[Line], job: str) -> tuple[str, Line | None]:
    """Return a job's name in the last rounds, and the line that has it."""
    for name in _names(job):
        for line in lines:
            if name in line.get("jobs", {}):
                return name, line
    return job, None


def _searched(
    path: Path, lines: Sequence[Line], job: str, slurm: _Slurm
) -> tuple[str, Line | None, EndedJob | None]:
    """Return the newest line that names a job, and how the job ended if it has.

    A job that the newest round lacks has ended, unless Slurm still has it or that round observed
    nothing.
    """
    is_live = slurm.record is not None and slurm.record.is_live
    saw_nothing = not any("jobs" in last for last in current(lines))
    found = None
    with suppress(OSError):
        if saw_nothing or not is_live:
            found = newest_with(path, _names(job))
    if found is None:
        return job, None, None
    name, line = found
    if name in line.get("jobs", {}) and saw_nothing and not slurm.knows_no_such_job:
        return name, line, None
    return (job, None, None) if is_live else (name, line, ended_by_journal(name, line))


def _answer(
    lines: Sequence[Line],
    job: str,
    slurm: _Slurm,
    found: Explanation | None,
    ended: EndedJob | None,
) -> Answer:
    if ended is not None or found is not None:
        return Answer.ENDED if ended is not None else Answer.FOUND
    if _tasks(lines, job):
        return Answer.ARRAY
    if slurm.record is not None and not slurm.record.by_accounting:
        described = decode_or_none(slurm.record.comment) is not None
        return Answer.NOT_TAKEN if described else Answer.LEFT
    return Answer.UNKNOWN


def _tasks(lines: Sequence[Line], job: str) -> set[str]:
    """Return the tasks of an array that are separate jobs in the last rounds."""
    names = (name for line in lines for name in line.get("jobs", {}))
    return {name for name in names if name.startswith(f"{job}_")}


def _why_not(lines: Sequence[Line], job: str, answer: Answer, slurm: _Slurm) -> str:
    """Return why the job cannot be explained."""
    if answer is Answer.ARRAY:
        tasks = _tasks(lines, job)
        named = sorted(tasks, key=natural_key)[:NAMED]
        return f"job {job} is an array of {len(tasks)} jobs: give one of {', '.join(named)} ..."
    if answer is Answer.LEFT:
        return f"job {job} is left to Slurm: it was not submitted by hadar-sbatch"
    if answer is Answer.NOT_TAKEN:
        return (
            f"job {job} was submitted by hadar-sbatch, but hadard does not manage it: it was "
            "submitted after the last round, hadard does not manage its partition, it uses options "
            "that hadard does not support (docs/hadar-sbatch.md), or `hadar leave` removed it"
        )
    if slurm.knows_no_such_job:
        return f"job {job} is unknown to the journal and to Slurm"
    return f"job {job} is unknown to the journal, and Slurm did not answer"


def _ask_slurm(config: Config, job: str) -> _Slurm:
    runner = Runner(config.slurm_conf, config.command_timeout_seconds)
    try:
        return _Slurm(record_of(runner, job))
    except SlurmError as error:
        return _Slurm(fault=str(error))
