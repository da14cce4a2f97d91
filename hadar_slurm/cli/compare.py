"""hadar compare: compares policies on the same workloads as table, CSV, JSON and HTML page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import one_of, some_of
from hadar_slurm.cli.pictures import can_draw
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.core.units import parse_number
from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.lab.inputs import (
    ReferenceOption,
    SpeedsOption,
    TableOption,
    TraceOptions,
    UnfitOption,
    complete_workload,
    is_generated,
    read_cluster,
    read_table,
    read_workload,
    workload_label,
)
from hadar_slurm.lab.study.compare import FORKING, Cell, StudyWorkload, scale_to_load
from hadar_slurm.lab.study.experiment import ORACLE, RULES, SPEEDS, ExperimentSettings, forked
from hadar_slurm.lab.study.report import Comparison, json_text, write_all
from hadar_slurm.lab.study.scenarios import SCENARIOS, Choices, Scenario
from hadar_slurm.lab.study.summary import groups, load_series
from hadar_slurm.lab.study.tables import run_with_bars, show
from hadar_slurm.lab.traces.load import DEFAULT_REFERENCE, parse_gpu_speeds
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.sim.backend import GAVEL_RULES

_TITLE = "Policies compared"
_GAVEL = "gavel"


def compare(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            help="Workloads: files, or generate:NAME for a built-in generator.",
            autocompletion=complete_workload,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help=f"A paper's experiment, in place of traces: {', '.join(SCENARIOS)}.",
            autocompletion=one_of(tuple(SCENARIOS)),
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated list of {', '.join(POLICY_NAMES)}; or all.",
            autocompletion=some_of(("all", *POLICY_NAMES)),
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="GPUs by type, COUNTxTYPE,...")
    ] = "20xV100,20xP100,20xK80",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    throughputs: TableOption = None,
    reference: ReferenceOption = DEFAULT_REFERENCE,
    gpu_speeds: SpeedsOption = "",
    leave_out_unfit: UnfitOption = False,
    rules: Annotated[
        str,
        typer.Option(help=f"One or both of {', '.join(RULES)}.", autocompletion=some_of(RULES)),
    ] = "hadar",
    speeds: Annotated[
        str,
        typer.Option(
            help=f"Where policies' throughputs come from, one or more of {', '.join(SPEEDS)}.",
            autocompletion=some_of(SPEEDS),
        ),
    ] = ORACLE,
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
        str | None, typer.Option(help="Seeds of generated workloads, 0,1,2; tables show means.")
    ] = None,
    first: Annotated[int | None, typer.Option(help="Use only the first N jobs.")] = None,
    copies: Annotated[
        int | None,
        typer.Option(help="Most copies of a forked job.", show_default="number of nodes"),
    ] = None,
    aggregation_seconds: Annotated[
        float, typer.Option(help="Seconds per round to average the copies' parameters.")
    ] = 10.0,
    jobs_at_once: Annotated[
        int | None, typer.Option(help="Parallel runs.", show_default="one per processor")
    ] = None,
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path(
        "compare-output"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run every policy on every workload, in parallel, and compare the results.

    After an interruption the same command continues where it stopped.
    """
    choices = Choices(_policies(policy), _seeds(seed), _loads(load), _at_least_one("first", first))
    processes = _at_least_one("jobs-at-once", jobs_at_once) or os.cpu_count() or 1
    console = Console(stderr=True)
    chosen = _scenario(scenario, traces or ())
    if chosen:
        cells = chosen.cells(choices, read_table(throughputs))
    else:
        nodes = read_cluster(cluster, gpus_per_node=gpus_per_node)
        chosen_rules = _choices("--rules", rules, RULES)
        reading = TraceOptions(
            read_table(throughputs),
            nodes,
            reference=reference,
            gpu_speeds=parse_gpu_speeds(gpu_speeds),
            leaves_out_unfit=leave_out_unfit,
            rules=tuple(GAVEL_RULES if name == _GAVEL else GangRules() for name in chosen_rules),
        )
        drawn = list(_drawn(traces or (), reading, choices, console))
        copying = partial(
            forked,
            max_copies=_at_least_one("copies", copies) or len(nodes.nodes),
            aggregation_s=_aggregation_s(aggregation_seconds),
        )
        cells = [
            cell
            for name in chosen_rules
            for workload in _workloads(
                drawn, nodes, choices.loads, _restarts(restart_seconds, name)
            )
            for known in _choices("--speeds", speeds, SPEEDS)
            for cell in _cells(
                workload,
                choices.policies or POLICY_NAMES,
                ExperimentSettings(round_s=_round_s(round_seconds), rules=name, speeds=known),
                nodes,
                cluster,
                copying,
            )
        ]
    records = run_with_bars(cells, output, processes, console)
    found = groups(records)
    comparison = Comparison(_TITLE, _command(), records, found, series=load_series(found))
    if chosen:
        comparison = replace(
            comparison,
            title=chosen.title,
            notes=chosen.notes(found),
            series=chosen.series(found),
            num_plotted=chosen.num_plotted,
            charted=chosen.charted,
        )
    if not can_draw(console):
        plain = groups([{**record, "occupancy": None} for record in records])
        comparison = replace(comparison, groups=plain, series=(), num_plotted=0)
    paths = write_all(output, comparison)
    if as_json:
        sys.stdout.write(json_text(comparison))
    else:
        show(found, comparison.notes)
    for path in paths:
        console.print(f"{path.name}: {path}", soft_wrap=True, highlight=False)
    failed = [record for record in records if record["status"] != "done"]
    if failed:
        raise HadarError(
            f"{len(failed)} of {len(records)} runs failed: "
            + "; ".join(f"{r['policy']} on {r['trace']}: {r['error']}" for r in failed[:5])
        )


# The options.


def _policies(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return POLICY_NAMES if text == "all" else _choices("--policy", text, POLICY_NAMES)


def _choices(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name!r}: expected one of {', '.join(known)}")
    return names


def _loads(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    values = tuple(parse_number(part, "--load", UsageError) for part in text.split(","))
    for value in values:
        if value < 1:
            raise UsageError(f"--load {value:g}: expected 1 per cent or more")
    return tuple(dict.fromkeys(values))


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    values = [parse_number(part, "--seed", UsageError) for part in text.split(",")]
    if any(value != int(value) for value in values):
        raise UsageError(f"--seed {text}: expected whole numbers")
    return tuple(dict.fromkeys(int(value) for value in values))


def _at_least_one(option: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"--{option} {value}: expected a whole number, 1 or more")
    return value


def _round_s(value: float) -> float:
    if not 0 < value < float("inf"):
        raise UsageError(f"--round-seconds {value:g}: expected a number above 0")
    return value


def _aggregation_s(value: float) -> float:
    if not 0 <= value < float("inf"):
        raise UsageError(f"--aggregation-seconds {value:g}: expected a number, 0 or more")
    return value


def _scenario(name: str | None, traces: Sequence[str]) -> Scenario | None:
    if bool(traces) == bool(name):
        raise UsageError("give traces, or a scenario with --scenario, and not both")
    if name is None:
        return None
    if name not in SCENARIOS:
        raise UsageError(f"--scenario {name!r}: expected one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def _command() -> str:
    return shlex.join(["hadar", *sys.argv[1:]])


# The runs.


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The jobs of a trace, or of a generator and a seed."""

    name: str
    seed: int | None
    specs: Sequence[JobSpec]


def _drawn(
    traces: Sequence[str], reading: TraceOptions, choices: Choices, console: Console
) -> Iterator[_Drawn]:
    """Yield the jobs of every trace and seed; print the reader's notes."""
    if choices.seeds and not any(is_generated(text) for text in traces):
        raise UsageError("--seed: only generated workloads take a seed, traces do not")
    for text in traces:
        for seed in (choices.seeds or (0,)) if is_generated(text) else (None,):
            specs, said = read_workload(
                text,
                reading,
                seed=seed or 0,
                first=choices.first,
                has_arrivals=choices.loads is not None,
            )
            for part in said:
                console.print(part, soft_wrap=True, highlight=False, markup=False)
            yield _Drawn(workload_label(text), seed, specs)


def _restarts(text: str | None, rules: str) -> tuple[str, ...]:
    if text is None:
        text = "0" if rules == _GAVEL else "30"
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _workloads(
    drawn: Sequence[_Drawn],
    nodes: Cluster,
    loads: Sequence[float] | None,
    restarts: Sequence[str],
) -> Iterator[StudyWorkload]:
    """Yield the jobs once for each restart cost and load."""
    for jobs in drawn:
        for restart in restarts:
            costs = parse_restart_costs(restart)
            specs = [replace(s, restart_cost_s=costs.of(s.workload)) for s in jobs.specs]
            for load in loads or (None,):
                scaled = specs if load is None else scale_to_load(specs, nodes, load)
                yield StudyWorkload(
                    name=jobs.name, specs=tuple(scaled), load=load, seed=jobs.seed, restart=restart
                )


def _cells(
    workload: StudyWorkload,
    policies: Sequence[str],
    settings: ExperimentSettings,
    nodes: Cluster,
    cluster_name: str,
    copying: Callable[[Sequence[JobSpec]], list[JobSpec]],
) -> Iterator[Cell]:
    """Yield a cell for each policy; forking policies get jobs that may be forked."""
    copied = replace(workload, specs=tuple(copying(workload.specs)))
    for policy in policies:
        yield Cell(
            workload=copied if policy in FORKING else workload,
            cluster=nodes,
            cluster_name=cluster_name,
            policy=policy,
            settings=settings,
        )
