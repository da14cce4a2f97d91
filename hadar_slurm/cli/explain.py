"""hadar explain: why a job waits, when it will start, and what would change that."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import ConfigOption, JournalOption, JsonOption, known_jobs
from hadar_slurm.config import read_config_to_answer
from hadar_slurm.core.cluster import JobId
from hadar_slurm.daemon.world import policy_of
from hadar_slurm.errors import UsageError
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.status.ended import ended_by_slurm
from hadar_slurm.status.explain import explain as explain_wait
from hadar_slurm.status.explain_text import print_ended, print_explanation
from hadar_slurm.status.health import standing_of
from hadar_slurm.status.job_search import Answer, SlurmRecord, answer_for, find_job, search_journal
from hadar_slurm.status.status import current
from hadar_slurm.status.status_text import last_lines, life_of, problem_lines, warnings


def explain(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Slurm's job id.", autocompletion=known_jobs)
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
    name, line = find_job(current(lines), job)
    # A copy of a forked job may have ended while the job goes on.
    slurm = SlurmRecord(was_asked=False) if journal else SlurmRecord.of(chosen, name)
    if fault and not slurm.knows_it_ended:
        raise UsageError(f"the journal {fault}; operators can read it, or give --journal")
    ended = None
    if slurm.knows_it_ended and slurm.record is not None:
        ended = ended_by_slurm(name, slurm.record)
    elif line is None or slurm.knows_no_such_job:
        name, line, ended = search_journal(path, lines, job, slurm)
    life = None if journal else life_of(chosen, now_s)
    is_alive = None if life is None else bool(life["alive"])
    newest = line or next(reversed(lines), None)
    standing = standing_of(newest, now_s, hadard_alive=is_alive)
    differs = line is not None and slurm.differs(line["jobs"].get(name, {}))
    found = None
    if ended is None and line is not None:
        is_own = chosen.policy == line["policy"]
        policy = policy_of(chosen) if is_own else make_policy(line["policy"])
        forecasts = is_alive is not False and not differs
        found = explain_wait(line, JobId(name), policy, time.monotonic, limit, forecasts=forecasts)
    answer, why_not = Answer.ENDED if ended else Answer.FOUND, ""
    if ended is None and found is None:
        answer, why_not = answer_for(lines, job, slurm)
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
        elif life is not None:
            for text in (*warnings(life, standing), *problem_lines(life)):
                console.print(text, markup=False)
        if found is not None:
            if differs and slurm.record is not None:
                console.print(f"changed since that round: it is {slurm.record.state} now")
            print_explanation(console, found, standing, differs=differs)
        elif ended is None:
            console.print(why_not, markup=False)
    if answer not in (Answer.FOUND, Answer.ENDED):
        raise typer.Exit(1)
