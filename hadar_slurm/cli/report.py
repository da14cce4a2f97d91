"""hadar report: figures of a period, and the same jobs simulated under plain Slurm."""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from hadar_slurm.cli.completing import ConfigOption, JournalOption, JsonOption
from hadar_slurm.config import read_config
from hadar_slurm.core.moves import in_words
from hadar_slurm.errors import ConfigError, UsageError
from hadar_slurm.journal.moved import Move
from hadar_slurm.journal.reader import read_period
from hadar_slurm.lab.garbage import rare_collections
from hadar_slurm.lab.replay import print_replay, replayed
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES
from hadar_slurm.status.claims import Claims
from hadar_slurm.status.report import Report, Reporter
from hadar_slurm.status.status import json_names
from hadar_slurm.status.words import day, output_console, table_of

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_HOUR_S = 3600.0
# Of the table of claims, and of users who are believed less.
_MOST_ROWS = 20


def report(
    config: ConfigOption = None,
    journal: JournalOption = None,
    *,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="30m, 24h, 7d, 4w ago, or 2026-11-01[T08:00]; default 1d, all with --journal.",
        ),
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Likewise; default now.")] = "",
    replay: Annotated[
        bool, typer.Option(help="Simulate the same jobs, also under plain Slurm.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Report decisions and GPU use over a period, and simulate the same jobs under plain Slurm.

    The replay uses hadard's last throughput estimate of each job and leaves out unmanaged jobs. A
    gain is stated where the simulation of hadard's policy is near what happened.
    """
    path, shares = _source(journal, config)
    now_s = time.time()
    since = since or ("" if journal else "1d")
    first_s = _time_s(since, now_s, "--since") if since else -math.inf
    last_s = _time_s(until, now_s, "--until") if until else math.inf
    damage: list[str] = []
    reader = _read(path, first_s, last_s, damage.append)
    found = reader.report()
    if found is None and damage:
        raise ConfigError(damage[0])
    if found is None:
        raise UsageError(f"{path} has no round in that period: give an earlier --since")
    _tell_damage(damage)
    past = reader.workload() if replay else None
    again = replayed(past, found.policies[-1], shares, is_quiet=as_json) if past else None
    if as_json:
        tree = asdict(found, dict_factory=json_names)
        typer.echo(json.dumps({**tree, **(again.as_tree() if again else {"replay": {}})}))
    else:
        console = output_console()
        _print(console, found)
        if again:
            print_replay(console, again)


def _source(journal: Path | None, config: Path | None) -> tuple[Path, float]:
    """Return the journal to read, and how strictly users share: by default where it is given."""
    if journal:
        return journal, DEFAULT_USER_SHARES
    site = read_config(config, needs_policy=False)
    return site.journal, site.user_shares


def _read(path: Path, first_s: float, last_s: float, on_damage: Callable[[str], None]) -> Reporter:
    """Return the rounds of a period; raises UsageError if the journal cannot be read."""
    reader = Reporter()
    try:
        with rare_collections():
            for line, changed in read_period(path, on_damage, first_s=first_s, last_s=last_s):
                reader.add(line, changed)
    except OSError as error:
        raise UsageError(f"the journal {path} cannot be read: {error.strerror}") from error
    return reader


def _tell_damage(damage: Sequence[str]) -> None:
    if damage:
        told = f"{len(damage)} damaged lines are left out; the first: {damage[0]}"
        Console(stderr=True).print(told, soft_wrap=True, highlight=False, markup=False)


def _time_s(text: str, now_s: float, option: str) -> float:
    """Return a time in seconds since the epoch."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if ago:
        return now_s - float(ago[1]) * _UNITS_S[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r}: expected 30m, 24h, 7d, 4w or a date such as 2026-11-01"
        ) from error


def _print(console: Console, found: Report) -> None:
    first, last = (datetime.fromtimestamp(s).astimezone() for s in (found.from_s, found.to_s))
    period = f"{first:%Y-%m-%d %H:%M %Z} to {last:%Y-%m-%d %H:%M %Z}"
    console.print(f"{period}, policy {', '.join(found.policies)}")
    console.print(
        f"{found.rounds} rounds, {found.failed_rounds} incomplete; decision time "
        f"{found.decision_s_p50:.3f} s median, {found.decision_s_max:.3f} s maximum"
    )
    for error, count in list(found.errors.items())[:3]:
        console.print(f"  {count} times: {error}", markup=False)
    ended = ", ".join(f"{count} {phase}" for phase, count in found.ended.items())
    mean = "" if found.mean_jct_s is None else f", mean JCT {found.mean_jct_s / _HOUR_S:.2f} h"
    console.print(f"{found.jobs} jobs; ended: {ended or 'none'}{mean}")
    console.print(f"{found.starts} starts, {found.moves} stops, {found.refused} actions refused")
    for text in _moves_in_words(found.moved):
        console.print(text)
    table = table_of("GPU type", "#managed, GPU hours", "#unmanaged", "#idle")
    for gpu_type, hours in found.gpu_hours.items():
        table.add_row(gpu_type, *(f"{n:,.1f}" for n in (hours.managed, hours.others, hours.idle)))
    console.print(table)
    _print_claims(console, found.claims)


def _moves_in_words(moved: Sequence[Move]) -> Iterator[str]:
    """Yield what moves cost and gained; nothing where there was none."""
    if not moved:
        return
    away, jobs = [move.away_s for move in moved], len({move.job for move in moved})
    cost = f"{in_words(statistics.median(away))} each without training (median), "
    cost += f"{in_words(max(away))} at most, {in_words(sum(m.lost_s for m in moved))} of work lost"
    yield f"{_counted(len(moved), 'move')} of {_counted(jobs, 'job')}: {cost}"
    if not (faster := [move for move in moved if move.is_faster]):
        return
    had_s, foreseen_s = ([getattr(m, name) for m in faster] for name in ("had_s", "foreseen_s"))
    had, foreseen = (_sooner(statistics.median(each)) for each in (had_s, foreseen_s))
    gain = f"so far {had} than on the former ones (median), foreseen {foreseen}"
    yield f"{len(faster):,} of these to faster GPUs: {gain}"


def _sooner(seconds: float) -> str:
    return f"{in_words(abs(seconds))} {'sooner' if seconds >= 0 else 'later'}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _print_claims(console: Console, found: Claims) -> None:
    """Print how far claims were off, the worst first, and what follows now."""
    if found.judged:
        jobs = "1 job" if found.judged == 1 else f"{found.judged} jobs"
        console.print(f"claimed against measured, {jobs}: factors by which claims were off")
        headings = "#jobs", "#time, median", "#worst", "#throughput, median", "#worst"
        table = table_of("user", "workload", *headings)
        rows = found.rows()
        for off in rows[:_MOST_ROWS]:
            factors = off.time_median, off.time_worst, off.throughput_median, off.throughput_worst
            # User names and job names may hold what looks like rich's markup.
            names = Text(off.user), Text("all" if off.workload is None else off.workload)
            table.add_row(*names, str(off.jobs), *(f"{factor:.3g}" for factor in factors))
        console.print(table)
        if len(rows) > _MOST_ROWS:
            console.print(f"and {len(rows) - _MOST_ROWS} more rows, which --json has")
    for user in found.believed_less[:_MOST_ROWS]:
        for text in user.words(day):
            console.print(f"{user.user}: {text}", markup=False)
    if found.replanned:
        number, first = len(found.replanned), found.replanned[0]
        jobs = "1 running job is" if number == 1 else f"{number} running jobs are"
        example = f"{first.job} of {first.user} with {first.steps:,} for {first.claimed_steps:,}"
        console.print(f"{jobs} planned with other steps than claimed: {example}", markup=False)
