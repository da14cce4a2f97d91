"""hadar demo: a queue of jobs on a local Slurm, without and with hadard, in minutes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import one_of
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.errors import HadarError
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.lab.checks import check_choice
from hadar_slurm.lab.demo.both_runs import WAYS, DemoSettings, both_runs
from hadar_slurm.lab.demo.report import (
    job_table,
    killed_text,
    plan_mismatches,
    summarize_run,
    summary_tree,
    total_table,
)
from hadar_slurm.lab.demo.runs import JobRun
from hadar_slurm.lab.demo.workload import load_workload
from hadar_slurm.lab.pictures import can_draw
from hadar_slurm.policies.registry import DEFAULT_POLICY, POLICY_NAMES
from hadar_slurm.slurm.client.state import read_nodes


def demo(
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("demo-output"),
    *,
    policy: Annotated[
        str, one_of(POLICY_NAMES, "hadard's policy, see docs/policies.md.")
    ] = DEFAULT_POLICY,
    way: Annotated[str, one_of(WAYS, "How hadard treats waiting jobs.")] = "steer",
    steps: Annotated[
        bool, typer.Option(help="Submit jobs with their number of training steps.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run 24 jobs on a real local Slurm, without and with hadard, and compare."""
    console = Console(stderr=as_json)
    check_choice("--policy", policy, POLICY_NAMES)
    check_choice("--way", way, WAYS)
    workload = load_workload()
    output.mkdir(parents=True, exist_ok=True)
    console.print(
        f"A real Slurm on this machine, six nodes: {workload.cluster}\n"
        f"{len(workload.jobs)} training jobs, {workload.source}"
    )
    with tempfile.TemporaryDirectory(prefix="hadar-demo-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        with LocalCluster.up(scratch / "cluster", parse_nodes(workload.cluster)) as cluster:
            plain, hadar = both_runs(
                workload,
                cluster=cluster,
                scratch=scratch,
                output=output,
                console=console,
                settings=DemoSettings(policy, way, steps),
            )
            nodes = Cluster.of(row.node for row in read_nodes(cluster.runner()))
    show_results(output, cluster=nodes, plain=plain, hadar=hadar, console=console, as_json=as_json)


def show_results(
    output: Path,
    cluster: Cluster,
    plain: Sequence[JobRun],
    hadar: Sequence[JobRun],
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Write figures and picture beside the journal, and print the results of both runs."""
    capacity = {str(gpu_type): count for gpu_type, count in cluster.gpus_by_type.items()}
    mismatches = plan_mismatches(read_journal(output / "journal.jsonl"))
    tree = summary_tree(plain, hadar, capacity, mismatches)
    (output / "summary.json").write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    files = ["summary.json", "journal.jsonl"]
    if can_draw(console):
        # matplotlib takes a second to load.
        from hadar_slurm.lab.demo.picture import draw_runs

        draw_runs(output / "gantt.png", cluster, {"plain Slurm": plain, "hadar": hadar})
        files.append("gantt.png")
    if as_json:
        print(json.dumps(tree, indent=2))
    console.print(job_table(plain, hadar))
    killed = killed_text(plain), killed_text(hadar)
    summaries = summarize_run(plain, capacity), summarize_run(hadar, capacity)
    console.print(total_table(*summaries, killed))
    for name in files:
        console.print(f"{name}: {output / name}", soft_wrap=True)
    lost = [run.job.name for run in (*plain, *hadar) if not run.has_finished]
    if lost or mismatches:
        raise HadarError(
            f"unfinished jobs: {', '.join(lost) or 'none'}; "
            f"plan and Slurm differ: {'; '.join(mismatches) or 'nowhere'}"
        )
