"""The text of hadar explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console

from hadar_slurm.journal.values import gang_from_tree
from hadar_slurm.status.ended import JobEnd
from hadar_slurm.status.explain import NAMED, Expected, Explanation, TypeForecast
from hadar_slurm.status.health import Standing
from hadar_slurm.status.jobs import Forked
from hadar_slurm.status.status_text import problem_lines, warnings
from hadar_slurm.status.words import averages_words, day, round_words, span, table_of


def print_known(
    console: Console,
    slurm: str | None,
    ended: JobEnd | None,
    life: Mapping[str, object] | None,
    standing: Standing,
    now_s: float,
) -> None:
    """Print Slurm's state of a job, and how it has ended or what is wrong with hadard."""
    if slurm is not None:
        console.print(f"Slurm: {slurm}", markup=False)
    if ended is not None:
        _print_ended(console, ended, now_s)
    elif life is not None:
        for text in (*warnings(life, standing), *problem_lines(life)):
            console.print(text, markup=False)


def _print_ended(console: Console, ended: JobEnd, now_s: float) -> None:
    if ended.phase:
        exit_code = f", exit code {ended.exit_code}" if ended.exit_code else ""
        text = f": {ended.phase}" + (f" ({ended.state}{exit_code})" if ended.state else "")
        if ended.ended_s:
            at = datetime.fromtimestamp(ended.ended_s).astimezone()
            ago = span(max(0.0, now_s - ended.ended_s))
            text += f" at {at:%Y-%m-%d %H:%M:%S %Z}, {ago} ago"
    else:
        seen = round_words(ended.seen_round or 0, ended.seen_s or 0.0, None)
        text = f", or was removed from Hadar's management, after {seen}; the outcome is not known"
    console.print(f"job {ended.job} has ended{text}", markup=False)


def print_explanation(
    console: Console, found: Explanation, standing: Standing, *, changed_to: str
) -> None:
    """Print a job's state in a round, and the forecast unless Slurm's state differs by now."""
    if changed_to:
        console.print(f"changed since that round: it is {changed_to} now")
    age_s = standing.age_s or 0.0
    when = round_words(found.round, found.time_s, standing.age_s)
    gpus = found.gpus if found.forked is None else found.gpus_held or found.gpus
    shown = f"{gpus} GPUs" if gpus != 1 else "1 GPU"
    sized = [f"{choice.gpus} {choice.gpu_type}" for choice in found.choices if choice.gpus]
    if sized and not found.gpus_held:
        shown = f"{' or '.join(sized)} for a copy"
    if found.forked is not None and found.forked.copies:
        number = len(found.forked.copies)
        shown += f" in {number} {'copy' if number == 1 else 'copies'}"
    console.print(f"job {found.job}: {found.state}, {shown}, by {when}, policy {found.policy}")
    for text in (*([found.reason] if found.reason else ()), *found.remarks):
        console.print(f"Hadar: {text}", markup=False)
    if found.goes_by_limit:
        unproven = "no claim of its owner is proven yet"
        console.print(f"{unproven}: beside other users' jobs it goes by its time limit")
    if found.claimed_steps:
        claimed, planned = f"{found.claimed_steps:,}", f"{found.steps_total:,}"
        console.print(f"{claimed} steps claimed, planned with {planned}")
    if less := found.believed_less:
        for text in less.words(day):
            console.print(f"{less.user}: {text}", markup=False)
    share = found.steps_done / found.steps_total
    if found.forked is not None or found.steps_done:
        console.print(f"{found.steps_done:,.0f} of {found.steps_total:,} steps done ({share:.0%})")
    if found.forked is not None:
        _print_copies(console, found.forked, found.time_s, age_s)
    if found.ends_in_s is not None and not changed_to:
        left_s = found.ends_in_s - age_s
        ends = f"should have ended {span(-left_s)} ago" if left_s < 0 else f"ends in {span(left_s)}"
        console.print(f"it {ends} unless migrated")
    _print_types(console, found.choices)
    if found.reason and not changed_to:
        _print_forecast(console, found, standing)


def _print_types(console: Console, choices: Sequence[TypeForecast]) -> None:
    """Print what is forecast of a job on each GPU type."""
    sized = any(choice.gpus for choice in choices)
    of_copy = ("#GPUs",) if sized else ()
    table = table_of("GPU type", *of_copy, "#steps/s", "#takes", "#free now", "#price")
    for choice in choices:
        price = "" if choice.price is None else f"{choice.price:.3g}"
        throughput, lasts = f"{choice.steps_per_s:.4g}", span(choice.lasts_s)
        size = (str(choice.gpus),) if sized else ()
        table.add_row(choice.gpu_type, *size, throughput, lasts, str(choice.free), price)
    console.print(table)


def _print_copies(console: Console, forked: Forked, time_s: float, age_s: float) -> None:
    if forked.copies:
        table = table_of("#copy", "job", "node", "GPUs", "#steps/s")
        for copy in forked.copies:
            speed = "" if copy.steps_per_s is None else f"{copy.steps_per_s:.4g}"
            by_type = gang_from_tree(copy.gang).gpus_by_type
            gpus = ", ".join(f"{count} {gpu_type}" for gpu_type, count in by_type.items())
            state = "pinned" if copy.is_pinned else speed
            table.add_row(str(copy.number), copy.task, ", ".join(copy.gang), gpus, state)
        console.print(table)
    if forked.is_synchronous:
        console.print("its copies train every step together")
    elif averaged := averages_words(forked, time_s + age_s):
        console.print(f"its copies were {averaged}")


def _print_forecast(console: Console, found: Explanation, standing: Standing) -> None:
    """Print when a waiting job starts; times count from now, not from the round."""
    if standing.hadard_alive is False:
        remedy = "`hadar release` and the reaper release held jobs to Slurm"
        console.print(f"no forecast of its start: hadard is not alive; {remedy}")
        return
    age_s = standing.age_s or 0.0
    if found.ahead:
        more = len(found.ahead) - NAMED
        names = ", ".join(found.ahead[:NAMED]) + (f" and {more} more" if more > 0 else "")
        jobs = "1 job is" if len(found.ahead) == 1 else f"{len(found.ahead)} jobs are"
        console.print(f"{jobs} ahead of it: {names}")
    if found.expected is None:
        console.print("its start is unknown: the forecast's time ran out, or it never starts")
    else:
        console.print(f"if no other jobs arrive, {_sentence(found.expected, age_s)}")
    if found.if_moved is not None:
        start = _sentence(found.if_moved, age_s)
        console.print(f"with --hadar-checkpoint=yes, {start}, or sooner if migrated")


def _sentence(expected: Expected, age_s: float) -> str:
    places = ", ".join(
        f"{count} {gpu_type} of {node}"
        for node, gpu_types in expected.gang.items()
        for gpu_type, count in gpu_types.items()
    )
    begins_s, ends_s = (max(0.0, s - age_s) for s in (expected.begins_in_s, expected.ends_in_s))
    return f"it starts in {span(begins_s)} on {places} and ends in {span(ends_s)}"
