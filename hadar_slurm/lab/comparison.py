"""The runs and the results of `hadar compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.jobspec.units import parse_number
from hadar_slurm.lab.adoption import (
    adoption_cells,
    adoption_notes,
    adoption_tree,
    with_adoption,
)
from hadar_slurm.lab.assumed_speeds import speeds_note, speeds_tree
from hadar_slurm.lab.checks import at_least_one, check_choice, choices_of, number_of, policies_of
from hadar_slurm.lab.inputs import (
    TraceOptions,
    check_limits,
    is_generated,
    read_cluster,
    read_history,
    read_table,
    read_workload,
    workload_label,
)
from hadar_slurm.lab.study.compare import (
    FORKING,
    Cell,
    Record,
    StudyWorkload,
    is_plain_slurm,
    requeues,
    scale_to_load,
    with_limits,
)
from hadar_slurm.lab.study.experiment import (
    LEARNED,
    ORACLE,
    RULES,
    SIZES,
    SPEEDS,
    ExperimentSettings,
    forked,
)
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS, plain_rows
from hadar_slurm.lab.study.gains.verdict import gains_tree, judged, verdict
from hadar_slurm.lab.study.report import Comparison
from hadar_slurm.lab.study.scenarios import SCENARIOS, Overrides, Scenario
from hadar_slurm.lab.study.summary import groups, killed_notes, load_series
from hadar_slurm.lab.traces.adopters import as_movable, without_some
from hadar_slurm.lab.traces.limits import parse_limits
from hadar_slurm.lab.traces.load import parse_gpu_speeds
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.lab.workload_list import read_workload_lists
from hadar_slurm.policies.registry import DEFAULT_POLICY, POLICY_NAMES
from hadar_slurm.sim.backend import GAVEL_RULES

_GAVEL = "gavel"
# Of Slurm's history.
FIRST_DAY = (*PLAIN_SLURMS, DEFAULT_POLICY)


def choices_by(
    policy: str | None, seed: str | None, load: str | None, first: int | None
) -> Overrides:
    """Return the choices that override those of a scenario."""
    policies = POLICY_NAMES if policy == "all" else None
    if policy is not None and policies is None:
        policies = policies_of("--policy", policy)
    seeds = _numbers("--seed", seed)
    if any(value != int(value) for value in seeds):
        raise UsageError(f"--seed {seed}: expected whole numbers")
    loads = _numbers("--load", load)
    for value in loads:
        if value < 1:
            raise UsageError(f"--load {value:g}: expected 1 per cent or more")
    first = at_least_one("--first", first)
    return Overrides(policies, tuple(map(int, seeds)) or None, loads or None, first)


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    parts = () if text is None else text.split(",")
    return tuple(dict.fromkeys(parse_number(part, option, UsageError) for part in parts))


def scenario_by(name: str | None, traces: Sequence[str]) -> Scenario | None:
    """Return the scenario, None for traces; some scenarios take lists of workloads as well."""
    if name is not None:
        check_choice("--scenario", name, tuple(SCENARIOS))
    scenario = SCENARIOS[name] if name else None
    if bool(traces) == bool(scenario) and not (scenario and scenario.takes_lists):
        able = ", ".join(each.name for each in SCENARIOS.values() if each.takes_lists)
        raise UsageError(
            "give traces, or a scenario with --scenario, and not both; only these scenarios take "
            f"lists of workloads as well: {able}"
        )
    return scenario


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of `hadar compare` for its runs, as given."""

    cluster: str
    gpus_per_node: int
    throughputs: Path | None
    reference: str
    gpu_speeds: str
    leave_out_unfit: bool
    rules: str
    speeds: str
    sizes: str | None
    limits: str
    time_on: bool
    history: str
    adoption: str | None
    movable: str | None
    leave_out: float
    round_seconds: float
    restart_seconds: str | None
    copies: int | None
    aggregation_seconds: float


def cells_of(
    scenario: Scenario | None,
    traces: Sequence[str],
    choices: Overrides,
    console: Console,
    options: CompareOptions,
) -> list[Cell]:
    """Return the runs of a scenario, or of traces with the command's options; print notes."""
    table, say = read_table(options.throughputs), partial(_say, console)
    choices = with_sizes(choices, options.sizes, options.limits, options.history)
    nodes = read_cluster(options.cluster, gpus_per_node=options.gpus_per_node)
    chosen_rules = choices_of("--rules", options.rules, RULES)
    reading = TraceOptions(
        table,
        nodes,
        reference=options.reference,
        gpu_speeds=parse_gpu_speeds(options.gpu_speeds),
        leaves_out_unfit=options.leave_out_unfit,
        rules=tuple(GAVEL_RULES if name == _GAVEL else GangRules() for name in chosen_rules),
    )
    choices = _with_shares(choices, options, chosen_rules, is_scenario=scenario is not None)
    if scenario:
        _check_scenario(scenario, choices)
        own_rules = replace(reading, rules=(GangRules(),))
        given = read_workload_lists(traces, own_rules, first=choices.first, say=say)
        return scenario.cells(replace(choices, workloads=given), table)
    drawn = list(_drawn(traces, reading, choices, say))
    round_s = number_of("--round-seconds", options.round_seconds, above=True)
    cells: list[Cell] = []
    for name in chosen_rules:
        default = "0" if name == _GAVEL else "30"
        costs = default if options.restart_seconds is None else options.restart_seconds
        settings = ExperimentSettings(round_s=round_s, rules=name, adjusts_limits=options.time_on)
        for workload in _workloads(drawn, nodes, choices.loads, costs):
            cell = Cell(
                workload=workload,
                cluster=nodes,
                cluster_name=options.cluster,
                policy=DEFAULT_POLICY,
                settings=settings,
            )
            cells += _cells_of(cell, choices, options)
    return cells


def _with_shares(
    choices: Overrides, options: CompareOptions, rules: Sequence[str], *, is_scenario: bool
) -> Overrides:
    """Return the choices with the shares of users and of jobs that are drawn, and --time-on."""
    if options.adoption is not None:
        if options.time_on:
            raise UsageError("--adoption: limits of plain jobs stay as they are; omit --time-on")
        shares = _numbers("--adoption", options.adoption)
        choices = with_adoption(choices, shares, rules, is_scenario=is_scenario)
    movable, leave_out = _shares("--movable", options.movable), options.leave_out
    if not 0 <= leave_out < 100:
        raise UsageError(f"--leave-out {leave_out:g}: expected per cent, 0 to less than 100")
    return replace(choices, movable=movable, leave_out=leave_out, adjusts_limits=options.time_on)


def _check_scenario(scenario: Scenario, choices: Overrides) -> None:
    """Raise UsageError for options that the scenario does not take."""
    if choices.movable:
        raise UsageError("--movable: scenarios take none; give traces")
    if choices.leave_out:
        raise UsageError("--leave-out: scenarios take none; give traces")
    if choices.sizes not in (None, (ORACLE,)) and not scenario.takes_lists:
        raise UsageError(f"--sizes: scenario {scenario.name} has sizes of its own")
    if choices.history:
        raise UsageError(f"--history: scenario {scenario.name} takes none")
    if choices.adjusts_limits and not scenario.takes_lists:
        raise UsageError(f"--time-on: scenario {scenario.name} has no time limits")


def _cells_of(cell: Cell, choices: Overrides, options: CompareOptions) -> Iterator[Cell]:
    """Yield the runs of one workload under some rules, by what is known, what moves, and policy.

    Plain Slurm's runs come once where they are the same whatever is known and moves, and first.
    """
    workload, nodes = cell.workload, cell.cluster
    max_copies = at_least_one("--copies", options.copies) or len(nodes.nodes)
    averaging_s = number_of("--aggregation-seconds", options.aggregation_seconds)
    # A site's history is compared as on the first day with hadard.
    is_first_day = bool(workload.held)
    sources = choices.sizes or ((LEARNED,) if is_first_day else (ORACLE,))
    if choices.history and LEARNED not in sources:
        raise UsageError(f"--history {choices.history}: it is not used; give --sizes learned")
    speeds = choices_of("--speeds", options.speeds, SPEEDS)
    plain: dict[tuple[str, ExperimentSettings, float | None], Cell] = {}
    others: list[Cell] = []
    for known, size, share in product(
        speeds, sources, choices.movable or ((0.0,) if is_first_day else (None,))
    ):
        check_limits(size, workload.name, workload.specs, time_on=options.time_on)
        settings = replace(cell.settings, speeds=known, sizes=size)
        jobs = workload if share is None else _movable(workload, share)
        each = replace(cell, workload=jobs, settings=settings)
        if choices.adoption:
            others += adoption_cells(each, choices)
            continue
        for policy in choices.policies or (FIRST_DAY if is_first_day else POLICY_NAMES):
            if is_plain_slurm(policy):
                one = each if requeues(policy) else cell
                one = replace(one, policy=policy, settings=_seen(settings, workload))
                plain.setdefault((policy, one.settings, one.workload.movable), one)
            elif policy in FORKING:
                specs = forked(jobs.specs, max_copies=max_copies, aggregation_s=averaging_s)
                others.append(
                    replace(each, workload=replace(jobs, specs=tuple(specs)), policy=policy)
                )
            else:
                others.append(replace(each, policy=policy))
    yield from (*plain.values(), *others)


def _movable(workload: StudyWorkload, share: float) -> StudyWorkload:
    """Return the workload with a share of its jobs movable, in per cent."""
    specs = as_movable(workload.specs, share, seed=workload.seed or 0)
    return replace(workload, specs=tuple(specs), movable=share)


def _seen(settings: ExperimentSettings, workload: StudyWorkload) -> ExperimentSettings:
    """Return the settings of plain Slurm, which sees no sizes where all jobs have time limits."""
    has_limits = all(spec.limit_s < math.inf for spec in workload.specs)
    return replace(settings, sizes=ORACLE) if has_limits else settings


def _shares(option: str, text: str | None) -> tuple[float, ...]:
    shares = _numbers(option, text)
    for share in shares:
        if not 0 <= share <= 100:
            raise UsageError(f"{option} {share:g}: expected per cent, 0 to 100")
    return shares


def with_sizes(choices: Overrides, sizes: str | None, limits: str, history: str) -> Overrides:
    """Return the choices with the sources of sizes, limits of jobs without any, and a history."""
    chosen = None if sizes is None else choices_of("--sizes", sizes, SIZES)
    return replace(choices, sizes=chosen, limits=parse_limits(limits), history=history)


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _drawn(
    traces: Sequence[str], reading: TraceOptions, choices: Overrides, say: Callable[[str], None]
) -> Iterator[StudyWorkload]:
    """Yield the jobs of every trace and seed; print the reader's notes."""
    options = choices.limits, choices.adoption, choices.leave_out
    if choices.seeds and not (any(options) or any(map(is_generated, traces))):
        raise UsageError(
            "--seed: only generated workloads, --limits, --adoption and --leave-out take a seed, "
            "traces do not"
        )
    for text in traces:
        for seed in (choices.seeds or (0,)) if is_generated(text) else (None,):
            draw = partial(read_workload, seed=seed or 0, has_arrivals=choices.loads is not None)
            found = draw(text, reading, first=choices.first)
            for part in found.notes:
                say(part)
            jobs = StudyWorkload(
                name=workload_label(text),
                specs=tuple(found.specs),
                seed=seed,
                speeds=found.speeds,
                held=found.held,
                recorded=found.recorded,
                history=tuple(read_history(choices.history, reading, seed or 0)),
            )
            for some in _without_some(jobs, choices):
                yield from with_limits(some, reading.cluster, choices.limits, choices.seeds)


def _without_some(jobs: StudyWorkload, choices: Overrides) -> Iterator[StudyWorkload]:
    """Yield the workload as it is, or without some of its jobs, once for each seed."""
    if not choices.leave_out:
        yield jobs
        return
    for seed in (choices.seeds or (0,)) if jobs.seed is None else (jobs.seed,):
        specs = without_some(jobs.specs, choices.leave_out, seed=seed)
        yield replace(jobs, specs=tuple(specs), seed=seed)


def _workloads(
    drawn: Sequence[StudyWorkload], nodes: Cluster, loads: Sequence[float] | None, restarts: str
) -> Iterator[StudyWorkload]:
    """Yield the jobs once for each restart cost of a list, and each load."""
    for jobs, restart in product(drawn, dict.fromkeys(map(str.strip, restarts.split(",")))):
        costs = parse_restart_costs(restart)
        specs = [replace(s, restart_cost_s=costs.of(s.workload)) for s in jobs.specs]
        for load in loads or (None,):
            scaled = specs if load is None else scale_to_load(specs, nodes, load)
            yield replace(jobs, specs=tuple(scaled), load=load, restart=restart)


def comparison_of(
    records: Sequence[Record],
    scenario: Scenario | None,
    command: str,
    *,
    has_pictures: bool,
    cells: Sequence[Cell] = (),
) -> Comparison:
    """Return the content of the report; `cells` have the assumed ratios of GPU types."""
    found = groups(records)
    comparison = Comparison("Policies compared", command, records, found, series=load_series(found))
    if scenario:
        # Its tables are in its notes.
        comparison = Comparison(
            scenario.title,
            command,
            records,
            found,
            (*killed_notes(found), *scenario.notes(found)),
            scenario.series(found),
            scenario.num_plotted,
            scenario.charted,
            scenario.tree(found),
        )
    if not scenario or any(map(plain_rows, found)):
        judgement = judged(found)
        tree = {**comparison.tree, "gains": gains_tree(judgement)}
        comparison = replace(comparison, verdict=verdict(judgement), tree=tree)
    speeds = {cell.workload.name: cell.workload.speeds for cell in cells}
    assumed = [note for name, each in speeds.items() if (note := speeds_note(each, name))]
    comparison = replace(
        comparison,
        notes=(*comparison.notes, *assumed),
        tree={**comparison.tree, "gpu_speeds": speeds_tree(speeds)},
    )
    if any(cell.adoption is not None for cell in cells):
        comparison = replace(
            comparison,
            notes=(*adoption_notes(records), *comparison.notes),
            tree={**comparison.tree, "adoption": adoption_tree(records)},
        )
    return comparison if has_pictures else _without_pictures(comparison)


def _without_pictures(comparison: Comparison) -> Comparison:
    plain = groups([{**record, "occupancy": None} for record in comparison.records])
    notes = [replace(note, matrix=None) for note in comparison.notes]
    return replace(comparison, groups=plain, notes=notes, series=(), num_plotted=0)


def check_done(records: Sequence[Record]) -> None:
    """Raise HadarError naming the runs that failed."""
    failed = [record for record in records if record["status"] != "done"]
    if failed:
        errors = "; ".join(f"{r['policy']} on {r['trace']}: {r['error']}" for r in failed[:5])
        raise HadarError(f"{len(failed)} of {len(records)} runs failed: {errors}")
