"""hadar speeds: shows what hadard has learned of workloads, and deletes some of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hadar_slurm.cli.completing import ConfigOption, JsonOption
from hadar_slurm.config import Config, read_config
from hadar_slurm.core.claims import Credits
from hadar_slurm.core.gpu_types import facts_of, with_own
from hadar_slurm.core.learned_sizes import EndedJob, EndedJobs
from hadar_slurm.core.throughput_model import ThroughputModel
from hadar_slurm.core.type_failures import TypeRecords, Work
from hadar_slurm.jobspec.estimator import words
from hadar_slurm.lab.traces.speeds import shipped_gpu_types
from hadar_slurm.state.learned_changes import forget as forget_workloads
from hadar_slurm.state.learned_changes import read_profile
from hadar_slurm.state.learned_file import FILE_NAME
from hadar_slurm.status.claims import BelievedLess
from hadar_slurm.status.words import day, output_console, span, table_of

_FADES = (
    "what is known of a user's claims counts half after 30 days, and less with each job that takes "
    "as long as claimed; `hadar speeds forget USER` deletes it"
)

app = typer.Typer(
    help="Show what hadard has learned of workloads, or delete it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def show(
    user: Annotated[str, typer.Argument(metavar="[USER]", help="Only this user's workloads.")] = "",
    config: ConfigOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show measured speeds, how long jobs train, barred types, and how far users are believed.

    The types are judged as for a job that could have all of them. Needs the rights of hadard's
    account: users' job names are private.
    """
    chosen = read_config(config, needs_policy=False)
    speeds, records, credits, ended = read_profile(chosen.state_dir / FILE_NAME)
    measured = list(_speeds(speeds, user))
    barred = list(_barred(speeds, records, user, chosen))
    claims = list(_claims(credits, user, time.time()))
    trained = list(_trained(ended, user))
    if as_json:
        rows = [_claim(each) for each in claims]
        typer.echo(
            json.dumps({"speeds": measured, "barred": barred, "claims": rows, "ended": trained})
        )
        return
    console = output_console()
    if not measured and not barred and not claims and not trained:
        console.print(f"nothing is known of {user or 'any workload'}", markup=False)
    _print_tables(console, measured, trained)
    for row in barred:
        gpus = "1 GPU" if row["gpus"] == 1 else f"{row['gpus']} GPUs"
        what = f"{row['workload']} of {row['user']} on {gpus}"
        console.print(f"{what}, not on {row['gpu_type']}: {row['why']}", markup=False)
    _print_claims(console, claims)


def _print_tables(
    console: Console, measured: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]
) -> None:
    """Print the measured throughputs, and how long jobs trained."""
    if measured:
        table = table_of("user", "workload", "GPU type", "#GPUs", "", "#steps/s", "#reports")
        for row in measured:
            spread = "across nodes" if row["is_spread"] else ""
            numbers = str(row["gpus"]), spread, f"{row['steps_per_s']:.4g}", str(row["reports"])
            texts = (row["user"], row["workload"], row["gpu_type"], *numbers)
            table.add_row(*map(Text, texts))
        console.print(table)
    if trained:
        table = table_of("user", "workload", "#GPUs", "#ended jobs", "#median")
        for row in trained:
            numbers_of = str(row["gpus"]), str(row["jobs"]), span(row["median_s"])
            table.add_row(*map(Text, (row["user"], row["workload"], *numbers_of)))
        console.print(table)


def _print_claims(console: Console, claims: Iterable[BelievedLess]) -> None:
    """Print how far users are believed."""
    is_any_corrected = False
    for each in claims:
        corrected = each.words(day)
        is_any_corrected |= bool(corrected)
        for text in corrected or [f"claims count as they are, by judged jobs: {each.jobs}"]:
            console.print(f"{each.user}: {text}", markup=False)
    if is_any_corrected:
        console.print(_FADES)


@app.command()
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose workloads.")],
    workload: Annotated[
        str | None,
        typer.Argument(metavar="[WORKLOAD]", help="Only this workload, as `show` names it."),
    ] = None,
    config: ConfigOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Delete what was learned of a user's workloads: speeds, failures and ended jobs.

    Without WORKLOAD, also how far the user's claims were off. A running hadard notices it in its
    next round. Needs the rights of hadard's account. Status 1 if nothing was known.
    """
    chosen = read_config(config, needs_policy=False)
    deleted = forget_workloads(chosen.state_dir / FILE_NAME, user, workload)
    if as_json:
        typer.echo(json.dumps({"deleted": deleted}))
    else:
        what = user if workload is None else f"{workload} of {user}"
        typer.echo(f"{deleted} records deleted" if deleted else f"nothing is known of {what}")
    if not deleted:
        raise typer.Exit(1)


def _speeds(speeds: ThroughputModel, user: str) -> Iterator[Mapping[str, Any]]:
    for workload, places in sorted(
        speeds.measured.items(), key=lambda item: (item[0].user, item[0].name)
    ):
        for place, measured in sorted(places.items()):
            if user in ("", workload.user):
                yield {
                    "user": workload.user,
                    "workload": workload.name,
                    "gpu_type": place.gpu_type,
                    "gpus": place.num_gpus,
                    "is_spread": place.is_spread,
                    "steps_per_s": measured.steps_per_s,
                    "reports": measured.count,
                }


def _trained(ended: EndedJobs, user: str) -> Iterator[Mapping[str, Any]]:
    """Yield the ended jobs of each workload, and their median time on the fastest GPU type."""
    for work, jobs, median_s in medians(ended.jobs.values()):
        if user in ("", work.workload.user):
            yield {
                "user": work.workload.user,
                "workload": work.workload.name,
                "gpus": work.num_gpus,
                "jobs": jobs,
                "median_s": median_s,
            }


def _claims(credits: Credits, user: str, now_s: float) -> Iterator[BelievedLess]:
    """Yield how far each user is believed."""
    for name, credit in sorted(credits.by_user.items()):
        if user in ("", name):
            yield BelievedLess.of(name, credit, now_s)


def _claim(found: BelievedLess) -> Mapping[str, Any]:
    """Return how far a user is believed as JSON; a time is None where nothing is corrected."""
    steps, throughputs = found.steps_times > 1, found.throughputs_off > 1
    return {
        "user": found.user,
        "jobs": found.jobs,
        "steps_times": found.steps_times,
        "steps_until_s": found.steps_until_s if steps else None,
        "throughputs_count": not throughputs,
        "throughputs_off": found.throughputs_off,
        "throughputs_until_s": found.throughputs_until_s if throughputs else None,
    }


def _barred(
    speeds: ThroughputModel, records: TypeRecords, user: str, chosen: Config
) -> Iterator[Mapping[str, Any]]:
    """Yield each type that a workload does not get, of all types that any workload has had."""
    known = with_own(shipped_gpu_types(), chosen.own_gpu_types)
    types = {place.gpu_type for places in speeds.measured.values() for place in places}
    types |= {name for of_type in records.of_work.values() for name in of_type}
    for work in sorted(records.of_work, key=_order):
        bars = records.barred(work, types, lambda name: facts_of(name, known).memory_gb)
        for gpu_type, bar in sorted(bars.items()):
            if user in ("", work.workload.user):
                yield {
                    "user": work.workload.user,
                    "workload": work.workload.name,
                    "gpus": work.num_gpus,
                    "gpu_type": gpu_type,
                    "failed_on": bar.failed_on,
                    "failed_s": bar.failed_s,
                    "lasted_s": bar.lasted_s,
                    "ran_on": list(bar.ran_on),
                    "why": words(bar),
                }


def medians(jobs: Iterable[EndedJob]) -> Iterator[tuple[Work, int, float]]:
    """Yield each work with its number of jobs and the median of their service in seconds."""
    found: dict[Work, list[float]] = {}
    for job in jobs:
        found.setdefault(job.work, []).append(job.service_s)
    for work, times in sorted(found.items(), key=lambda item: _order(item[0])):
        yield work, len(times), sorted(times)[len(times) // 2]


def _order(work: Work) -> tuple[str, str, int]:
    return work.workload.user, work.workload.name, work.num_gpus
