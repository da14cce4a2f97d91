"""hadar explain: why a job waits, when it will start, and what would change that."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer

from hadar_slurm.cli.completing import (
    ConfigOption,
    JournalOption,
    JsonOption,
    known_jobs,
    read_config_to_answer,
)
from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.daemon.world import policy_of
from hadar_slurm.journal import Line
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.status.explain import Explanation
from hadar_slurm.status.explain import explain as explain_wait
from hadar_slurm.status.explain_text import print_explanation, print_known
from hadar_slurm.status.health import standing_of
from hadar_slurm.status.job_search import Answer, search
from hadar_slurm.status.status_text import life_of
from hadar_slurm.status.words import output_console


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
    now_s = time.time()
    job_found = search(chosen, journal or chosen.journal, job, asks_slurm=journal is None)
    slurm, line, ended = job_found.slurm, job_found.line, job_found.ended
    life = None if journal else life_of(chosen, now_s)
    is_alive = None if life is None else bool(life["alive"])
    newest = line or next(reversed(job_found.lines), None)
    standing = standing_of(newest, now_s, hadard_alive=is_alive)
    found = None
    if ended is None and line is not None:
        forecasts = is_alive is not False and not job_found.differs
        found = _explained(line, JobId(job_found.name), chosen, limit, forecasts=forecasts)
    answer, why_not = (Answer.FOUND, "") if found else job_found.answer()
    if as_json:
        tree: dict[str, object] = {
            "answer": answer,
            "slurm": slurm.words,
            "slurm_differs": job_found.differs,
            **asdict(standing),
            "problems": life["problems"] if life else {},
            "found": asdict(found) if found else None,
            "ended": asdict(ended) if ended else None,
        }
        typer.echo(json.dumps(tree))
    else:
        console = output_console()
        never = slurm.record.why_never if slurm.record else ""
        words = f"{slurm.words}: {never}" if never else slurm.words
        print_known(console, words, ended, life, standing, now_s)
        if found is not None:
            changed_to = slurm.state if job_found.differs else ""
            print_explanation(console, found, standing, changed_to=changed_to)
        elif ended is None:
            console.print(why_not, markup=False)
        if ended is None and slurm.record is not None and (remedy := slurm.record.remedy(job)):
            console.print(remedy, markup=False)
    if answer not in (Answer.FOUND, Answer.ENDED):
        raise typer.Exit(1)


def _explained(
    line: Line, job: JobId, chosen: Config, limit_s: float, *, forecasts: bool
) -> Explanation | None:
    """Return what a line says of a job, with a forecast by the policy of that line."""
    is_own = chosen.policy == line["policy"]
    policy = policy_of(chosen) if is_own else make_policy(line["policy"])
    return explain_wait(line, job, policy, time.monotonic, limit_s, forecasts=forecasts)
