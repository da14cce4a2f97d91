"""hadar simulate: a workload under a policy, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hadar_slurm.cli.completing import one_of
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError, UsageError
from hadar_slurm.journal import Journal
from hadar_slurm.lab.inputs import (
    ReferenceOption,
    SpeedsOption,
    TableOption,
    TraceOptions,
    UnfitOption,
    complete_workload,
    read_cluster,
    read_table,
    read_workload,
)
from hadar_slurm.lab.study.bounds import Bounds, bounds
from hadar_slurm.lab.study.compare import FORKING
from hadar_slurm.lab.study.experiment import (
    ORACLE,
    RULES,
    SPEEDS,
    ExperimentSettings,
    Result,
    forked,
    run_experiment,
)
from hadar_slurm.lab.study.failures import draw_failures
from hadar_slurm.lab.traces.load import DEFAULT_REFERENCE, parse_gpu_speeds
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.policies.hadar_paper.utility import UTILITIES
from hadar_slurm.policies.registry import DEFAULT_POLICY, POLICY_NAMES, make_policy
from hadar_slurm.sim.backend import GAVEL_RULES, Failure

_HOUR_S = 3600.0
# Failures are drawn for this multiple of the lower bound on the makespan.
_FAILURES_FOR_BOUNDS = 10.0

_HADAR, _GAVEL = RULES


def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            help="Workload: Gavel trace, ElasticFlow CSV, sacct -P output, generate:hadar480.",
            autocompletion=complete_workload,
        ),
    ],
    cluster: Annotated[
        str, typer.Option(help="GPUs by type, COUNTxTYPE,..., or a YAML file.")
    ] = "20xV100,20xP100,20xK80",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    policy: Annotated[
        str,
        typer.Option(
            help=f"One of: {', '.join(POLICY_NAMES)}.", autocompletion=one_of(POLICY_NAMES)
        ),
    ] = DEFAULT_POLICY,
    utility: Annotated[
        str,
        typer.Option(
            help=f"For hadar-paper, one of: {', '.join(UTILITIES)}.",
            autocompletion=one_of(tuple(UTILITIES)),
        ),
    ] = "throughput",
    rules: Annotated[
        str,
        typer.Option(
            help="hadar: migration and spreading cost time; gavel: as in Gavel's simulator.",
            autocompletion=one_of(RULES),
        ),
    ] = _HADAR,
    speeds: Annotated[
        str,
        typer.Option(
            help="Source of the throughputs that the policy sees: oracle, the true ones; learned, "
            "measured in past rounds; prior, the GPU types' published speeds; none.",
            autocompletion=one_of(SPEEDS),
        ),
    ] = ORACLE,
    round_seconds: Annotated[float, typer.Option(help="Seconds per round.")] = 360.0,
    restart_seconds: Annotated[
        str | None,
        typer.Option(
            help="Restart cost: 30, or by model 30,ResNet-50=250,..., or the preset sia.",
            show_default="30, under Gavel's rules 0",
        ),
    ] = None,
    first: Annotated[int | None, typer.Option(help="Use only the first N jobs.")] = None,
    throughputs: TableOption = None,
    reference: ReferenceOption = DEFAULT_REFERENCE,
    gpu_speeds: SpeedsOption = "",
    leave_out_unfit: UnfitOption = False,
    copies: Annotated[
        int | None,
        typer.Option(help="Most copies of a forked job.", show_default="number of nodes"),
    ] = None,
    aggregation_seconds: Annotated[
        float, typer.Option(help="Seconds per round to average the copies' parameters.")
    ] = 10.0,
    node_mtbf_hours: Annotated[
        float | None, typer.Option(help="Let nodes fail: mean hours between failures of one node.")
    ] = None,
    node_repair_hours: Annotated[float, typer.Option(help="Mean hours to repair a node.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of failures and generated workloads.")] = 0,
    journal: Annotated[Path | None, typer.Option(help="Write every round to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate TRACE under a policy, with the same loop as hadard, in virtual time."""
    _check_choice("--policy", policy, POLICY_NAMES)
    _check_choice("--utility", utility, tuple(UTILITIES))
    _check_choice("--rules", rules, RULES)
    _check_choice("--speeds", speeds, SPEEDS)
    _check_number("--round-seconds", round_seconds, above=True)
    _check_number("--aggregation-seconds", aggregation_seconds)
    for option, count in (("--first", first), ("--copies", copies)):
        if count is not None and count < 1:
            raise UsageError(f"{option} {count}: expected a whole number, 1 or more")
    if restart_seconds is None:
        restart_seconds = "0" if rules == _GAVEL else "30"
    nodes = read_cluster(cluster, gpus_per_node=gpus_per_node)
    reading = TraceOptions(
        read_table(throughputs),
        nodes,
        costs=parse_restart_costs(restart_seconds),
        reference=reference,
        gpu_speeds=parse_gpu_speeds(gpu_speeds),
        leaves_out_unfit=leave_out_unfit,
        rules=(GAVEL_RULES if rules == _GAVEL else GangRules(),),
    )
    specs, said = read_workload(trace, reading, seed=seed, first=first)
    for part in said:
        Console(stderr=True).print(part, soft_wrap=True, highlight=False, markup=False)
    least = bounds(specs, nodes, counts_spread=rules == _HADAR)
    if policy in FORKING:
        specs = forked(
            specs, max_copies=copies or len(nodes.nodes), aggregation_s=aggregation_seconds
        )
    failures = _failures(node_mtbf_hours, node_repair_hours, seed, specs, nodes, least)
    settings = ExperimentSettings(
        round_s=round_seconds, rules=rules, failures=failures, speeds=speeds, seed=seed
    )
    result = _run(specs, nodes, policy, utility, settings, journal)
    if as_json:
        print(json.dumps(_as_tree(result, least), indent=2))
    else:
        _show(result, least, policy in FORKING)


def _failures(
    mtbf_hours: float | None,
    repair_hours: float,
    seed: int,
    specs: list[JobSpec],
    nodes: Cluster,
    least: Bounds,
) -> tuple[Failure, ...]:
    if mtbf_hours is None:
        return ()
    _check_number("--node-mtbf-hours", mtbf_hours, above=True)
    _check_number("--node-repair-hours", repair_hours, above=True)
    begins_s = min(spec.submitted_s for spec in specs)
    return draw_failures(
        nodes,
        mtbf_s=mtbf_hours * _HOUR_S,
        repair_s=repair_hours * _HOUR_S,
        until_s=begins_s + _FAILURES_FOR_BOUNDS * least.ttd_gang_s,
        seed=seed,
    )


def _run(
    specs: list[JobSpec],
    nodes: Cluster,
    policy: str,
    utility: str,
    settings: ExperimentSettings,
    journal: Path | None,
) -> Result:
    with (
        _journal(journal) as file,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} jobs"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress,
    ):
        task = progress.add_task(policy, total=len(specs))

        def record(line: RoundRecord) -> None:
            if file:
                file.write(line)

        return run_experiment(
            specs,
            nodes,
            make_policy(policy, utility=utility),
            settings,
            on_progress=lambda done: progress.update(task, completed=done),
            on_round=record,
        )


@contextmanager
def _journal(path: Path | None) -> Iterator[Journal | None]:
    if path is None:
        yield None
        return
    file = Journal(path)
    try:
        file.open()
    except OSError as error:
        raise ConfigError(f"--journal {path}: {error.strerror}") from error
    try:
        yield file
    finally:
        file.close()


def _as_tree(result: Result, least: Bounds) -> dict[str, object]:
    return {
        "policy": result.policy,
        "jobs": result.jobs,
        "completed": result.completed,
        "ttd_s": result.ttd_s,
        "mean_jct_s": result.mean_jct_s,
        "p50_jct_s": result.p50_jct_s,
        "p95_jct_s": result.p95_jct_s,
        "p99_jct_s": result.p99_jct_s,
        "mean_queueing_s": result.mean_queueing_s,
        "max_wait_s": result.max_wait_s,
        "mean_ftf": result.mean_ftf,
        "max_ftf": result.max_ftf,
        "utilization": result.utilization,
        "utilization_by_type": dict(result.utilization_by_type),
        "cru": result.cru,
        "moves": result.moves,
        "rounds": result.rounds,
        "bound_ttd_gang_s": least.ttd_gang_s,
        "bound_ttd_forking_s": least.ttd_forking_s,
        "bound_mean_jct_s": least.mean_jct_s,
        "bound_mean_jct_gang_s": least.mean_jct_gang_s,
        "decision_ms_p50": result.decision_ms_p50,
        "decision_ms_p99": result.decision_ms_p99,
        "cpu_s": result.cpu_s,
    }


def _show(result: Result, least: Bounds, is_forked: bool) -> None:
    table = Table(
        title=f"{result.policy}: {result.completed} of {result.jobs} jobs completed",
        caption="least: lower bound for any policy; ratio: value / least.",
    )
    for heading in ("figure", "value", "least", "ratio"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")

    def hours(name: str, value_s: float, least_s: float | None = None) -> None:
        bound = [f"{least_s / _HOUR_S:.2f} h", f"{value_s / least_s:.3f}"] if least_s else []
        table.add_row(name, f"{value_s / _HOUR_S:.2f} h", *bound)

    hours("TTD", result.ttd_s, least.ttd_forking_s if is_forked else least.ttd_gang_s)
    hours("mean JCT", result.mean_jct_s, least.mean_jct_s)
    hours("JCT p50", result.p50_jct_s)
    hours("JCT p95", result.p95_jct_s)
    hours("JCT p99", result.p99_jct_s)
    hours("mean queueing", result.mean_queueing_s)
    hours("longest wait", result.max_wait_s)
    table.add_row(
        "finish-time fairness, mean / worst", f"{result.mean_ftf:.2f} / {result.max_ftf:.2f}"
    )
    table.add_row("GPU time held", f"{result.cru:.1%}")
    table.add_row("GPU time training", f"{result.utilization:.1%}")
    for gpu_type, share in result.utilization_by_type.items():
        table.add_row(f"{gpu_type} held", f"{share:.1%}")
    table.add_row("moves", str(result.moves))
    table.add_row("rounds", str(result.rounds))
    table.add_row(
        "decision p50 / p99", f"{result.decision_ms_p50:.1f} / {result.decision_ms_p99:.1f} ms"
    )
    table.add_row("CPU time", f"{result.cpu_s:.1f} s")
    Console().print(table)


def _check_number(option: str, value: float, *, above: bool = False) -> None:
    if not 0 <= value < float("inf") or (above and value == 0):
        expected = "a number above 0" if above else "a number, 0 or more"
        raise UsageError(f"{option} {value:g}: expected {expected}")


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value!r}: expected one of {', '.join(known)}")
