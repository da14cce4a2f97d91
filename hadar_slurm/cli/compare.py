"""hadar compare: compares policies on the same workloads as table, CSV, JSON and HTML page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import CLUSTER, AveragingOption, CopiesOption, one_of, some_of
from hadar_slurm.lab.checks import at_least_one
from hadar_slurm.lab.comparison import (
    CompareOptions,
    cells_of,
    check_done,
    choices_by,
    comparison_of,
    scenario_by,
)
from hadar_slurm.lab.inputs import (
    HistoryOption,
    LimitsOption,
    ReferenceOption,
    SpeedsOption,
    TableOption,
    TimeOnOption,
    UnfitOption,
    complete_workload,
)
from hadar_slurm.lab.on_slurm import (
    OnSlurmOption,
    SlurmMemoryOption,
    SlurmOptionsOption,
    SlurmPartitionOption,
    SlurmTimeOption,
    way_to_run,
)
from hadar_slurm.lab.pictures import can_draw
from hadar_slurm.lab.study.experiment import ORACLE, RULES, SIZES, SPEEDS
from hadar_slurm.lab.study.report import json_text, write_all
from hadar_slurm.lab.study.running.progress import run_with_bars
from hadar_slurm.lab.study.scenarios import SCENARIOS
from hadar_slurm.lab.study.tables import show
from hadar_slurm.lab.traces.load import DEFAULT_REFERENCE
from hadar_slurm.policies.registry import POLICY_NAMES


def compare(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            help="Workloads: files, or generate:NAME for a built-in generator; with --scenario "
            "generality: lists of workloads, YAML files or directories with workloads.yaml.",
            autocompletion=complete_workload,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        one_of(SCENARIOS, f"An experiment, in place of traces: {', '.join(SCENARIOS)}."),
    ] = None,
    policy: Annotated[
        str | None,
        some_of(
            ("all", *POLICY_NAMES),
            f"Comma-separated list of {', '.join(POLICY_NAMES)}; or all. Default: all; for "
            "Slurm's history hadar and plain Slurm with several kinds of users.",
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="GPUs by type, COUNTxTYPE,...")] = CLUSTER,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    throughputs: TableOption = None,
    reference: ReferenceOption = DEFAULT_REFERENCE,
    gpu_speeds: SpeedsOption = "",
    leave_out_unfit: UnfitOption = False,
    rules: Annotated[str, some_of(RULES, f"One or both of {', '.join(RULES)}.")] = "hadar",
    speeds: Annotated[
        str,
        some_of(
            SPEEDS,
            f"Where policies' throughputs come from, one or more of {', '.join(SPEEDS)}.",
        ),
    ] = ORACLE,
    sizes: Annotated[
        str | None,
        some_of(
            SIZES,
            f"What policies know of jobs' sizes, one or more of {', '.join(SIZES)}. Default: "
            "oracle, for Slurm's history learned.",
        ),
    ] = None,
    limits: LimitsOption = "",
    time_on: TimeOnOption = False,
    history: HistoryOption = "",
    adoption: Annotated[
        str | None,
        typer.Option(
            help="Shares of the users, in percent, whose jobs the policies place: 10,30,50,100; "
            "drawn from --seed. Plain Slurm places all other jobs, slurm or those of --policy. "
            "Needs a workload with users; --policy is then hadar by default."
        ),
    ] = None,
    movable: Annotated[
        str | None,
        typer.Option(
            help="Shares of the jobs, in percent, that can save and be migrated: 0,30,100; drawn "
            "from the workload's seed.",
            show_default="all, for Slurm's history 0",
        ),
    ] = None,
    leave_out: Annotated[
        float,
        typer.Option(
            help="Percent of the jobs that are not played, drawn from each --seed: shows how far "
            "single runs move."
        ),
    ] = 0.0,
    round_seconds: Annotated[float, typer.Option(help="Seconds per round.")] = 360.0,
    restart_seconds: Annotated[
        str | None,
        typer.Option(
            help="Restart costs, one or more: 0,10,30; sia sets them by model.",
            show_default="30, under Gavel's rules 0",
        ),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Offered loads in percent of the cluster's capacity: 70,90,110; arrival times "
            "are scaled to match."
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            help="Seeds of generated workloads, limits, adopters and jobs left out, 0,1,2; tables "
            "show means."
        ),
    ] = None,
    first: Annotated[int | None, typer.Option(help="Use only the first N jobs.")] = None,
    copies: CopiesOption = None,
    aggregation_seconds: AveragingOption = 10.0,
    jobs_at_once: Annotated[
        int | None,
        typer.Option(
            help="Parallel runs; with --on-slurm of an array.",
            show_default="one per processor; all with --on-slurm",
        ),
    ] = None,
    on_slurm: OnSlurmOption = False,
    slurm_partition: SlurmPartitionOption = "",
    slurm_time: SlurmTimeOption = "4:00:00",
    slurm_memory: SlurmMemoryOption = "4G",
    slurm_options: SlurmOptionsOption = "",
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path(
        "compare-output"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run every policy on every workload, in parallel, and compare the results.

    After an interruption the same command continues where it stopped.
    """
    choices = choices_by(policy, seed, load, first)
    way = way_to_run(
        at_least_one("--jobs-at-once", jobs_at_once),
        on_slurm=on_slurm,
        partition=slurm_partition,
        time_limit=slurm_time,
        memory=slurm_memory,
        options=slurm_options,
    )
    console = Console(stderr=True)
    chosen = scenario_by(scenario, traces or ())
    options = CompareOptions(
        cluster=cluster,
        gpus_per_node=gpus_per_node,
        throughputs=throughputs,
        reference=reference,
        gpu_speeds=gpu_speeds,
        leave_out_unfit=leave_out_unfit,
        rules=rules,
        speeds=speeds,
        sizes=sizes,
        limits=limits,
        time_on=time_on,
        history=history,
        adoption=adoption,
        movable=movable,
        leave_out=leave_out,
        round_seconds=round_seconds,
        restart_seconds=restart_seconds,
        copies=copies,
        aggregation_seconds=aggregation_seconds,
    )
    cells = cells_of(chosen, traces=traces or (), choices=choices, console=console, options=options)
    records = run_with_bars(cells, output, way, console)
    command = shlex.join(["hadar", *sys.argv[1:]])
    comparison = comparison_of(
        records, chosen, command, has_pictures=can_draw(console), cells=cells
    )
    paths = write_all(output, comparison)
    if as_json:
        sys.stdout.write(json_text(comparison))
    else:
        groups = () if chosen else comparison.groups
        show(groups, comparison.notes, comparison.verdict)
    for path in paths:
        console.print(f"{path.name}: {path}", soft_wrap=True, highlight=False)
    check_done(records)
