"""hadar simulate: a workload under a policy, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import CLUSTER, AveragingOption, CopiesOption, one_of
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.lab.checks import at_least_one, check_choice, number_of, policies_of
from hadar_slurm.lab.inputs import (
    HistoryOption,
    LimitsOption,
    ReferenceOption,
    SpeedsOption,
    TableOption,
    TimeOnOption,
    TraceOptions,
    UnfitOption,
    check_limits,
    complete_workload,
    read_cluster,
    read_history,
    read_table,
    read_workload,
)
from hadar_slurm.lab.simulation import as_tree, failures_of, run_with_bar, show
from hadar_slurm.lab.study.bounds import bounds
from hadar_slurm.lab.study.compare import FORKING
from hadar_slurm.lab.study.experiment import (
    ORACLE,
    RULES,
    SIZES,
    SPEEDS,
    ExperimentSettings,
    forked,
)
from hadar_slurm.lab.traces.limits import parse_limits
from hadar_slurm.lab.traces.load import DEFAULT_REFERENCE, parse_gpu_speeds
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.policies.hadar_paper.utility import UTILITIES
from hadar_slurm.policies.registry import DEFAULT_POLICY, POLICY_NAMES, make_policy
from hadar_slurm.sim.backend import GAVEL_RULES

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
    ] = CLUSTER,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    policy: Annotated[
        str, one_of(POLICY_NAMES, f"One of: {', '.join(POLICY_NAMES)}.")
    ] = DEFAULT_POLICY,
    utility: Annotated[
        str, one_of(UTILITIES, f"For hadar-paper, one of: {', '.join(UTILITIES)}.")
    ] = "throughput",
    rules: Annotated[
        str,
        one_of(RULES, "hadar: migration and spreading cost time; gavel: as in Gavel's simulator."),
    ] = _HADAR,
    speeds: Annotated[
        str,
        one_of(
            SPEEDS,
            "Source of the throughputs that the policy sees: oracle, the true ones; learned, "
            "measured in past rounds; prior, the GPU types' published speeds; none.",
        ),
    ] = ORACLE,
    sizes: Annotated[
        str,
        one_of(
            SIZES,
            "What the policy knows of the jobs' sizes: oracle, the true ones; limit, the time "
            "limit; learned, what earlier jobs say; prior, what is known before any job.",
        ),
    ] = ORACLE,
    limits: LimitsOption = "",
    time_on: TimeOnOption = False,
    history: HistoryOption = "",
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
    copies: CopiesOption = None,
    aggregation_seconds: AveragingOption = 10.0,
    node_mtbf_hours: Annotated[
        float | None, typer.Option(help="Let nodes fail: mean hours between failures of one node.")
    ] = None,
    node_repair_hours: Annotated[float, typer.Option(help="Mean hours to repair a node.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of failures, workloads and limits.")] = 0,
    journal: Annotated[Path | None, typer.Option(help="Write every round to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate TRACE under a policy, with the same loop as hadard, in virtual time."""
    policies_of("--policy", policy)
    check_choice("--utility", utility, tuple(UTILITIES))
    check_choice("--rules", rules, RULES)
    check_choice("--speeds", speeds, SPEEDS)
    check_choice("--sizes", sizes, SIZES)
    number_of("--round-seconds", round_seconds, above=True)
    number_of("--aggregation-seconds", aggregation_seconds)
    at_least_one("--first", first)
    at_least_one("--copies", copies)
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
    found = read_workload(trace, reading, seed=seed, first=first)
    specs = found.specs
    for part in found.notes:
        Console(stderr=True).print(part, soft_wrap=True, highlight=False, markup=False)
    least = bounds(specs, nodes, counts_spread=rules == _HADAR)
    if drawn := parse_limits(limits):
        specs = drawn.drawn(specs, nodes.gpus_by_type, seed)
    check_limits(sizes, trace, specs, time_on=time_on)
    if policy in FORKING:
        most = copies or len(nodes.nodes)
        specs = forked(specs, max_copies=most, aggregation_s=aggregation_seconds)
    failures = failures_of(node_mtbf_hours, node_repair_hours, seed, specs, nodes, least)
    settings = ExperimentSettings(
        round_s=round_seconds,
        rules=rules,
        failures=failures,
        speeds=speeds,
        sizes=sizes,
        seed=seed,
        adjusts_limits=time_on,
    )
    made = make_policy(f"{policy}:{utility}" if policy == "hadar-paper" else policy)
    before = read_history(history, reading, seed)
    result = run_with_bar(specs, nodes, made, settings, journal, before)
    if as_json:
        print(json.dumps(as_tree(result, least, found.speeds), indent=2))
    else:
        show(result, least, policy in FORKING, found.speeds)
