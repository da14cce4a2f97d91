"""Results of the demo: tables, the content of `summary.json`, and a check of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, product

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hadar_slurm.journal import Line
from hadar_slurm.lab.demo.runs import JobRun
from hadar_slurm.metrics import Summary, figures


def summarize_run(runs: Sequence[JobRun], capacity: Mapping[str, int]) -> Summary:
    """Return the figures of one run; a job counts as finished if it trained every step once."""
    return figures(
        {run.job_id: run.submitted_s for run in runs},
        {run.job_id: run.ended_s for run in runs if run.has_finished},
        [segment for run in runs for segment in run.segments],
        capacity,
    )


def plan_mismatches(lines: Iterable[Line]) -> list[str]:
    """Return a message for every running job whose GPUs differ from those of the last plan.

    A round records the GPUs in `scontrol show job -d` (`holds`) and the planned ones (`plan`), by
    node and type. Jobs with an action that is not done (the job had ended, or its new GPUs were not
    free yet) are skipped.
    """
    found = []
    planned: Line = {}
    for line in lines:
        for job_id, job in line.get("jobs", {}).items():
            if job["phase"] == "running" and job_id in planned and job["holds"] != planned[job_id]:
                held = f"job {job_id} holds {job['holds']}, planned {planned[job_id]}"
                found.append(f"round {line['round']}: {held}")
        if line["plan"] is not None:
            undone = {action["job"] for action in line["actions"] if action["status"] != "done"}
            planned = {job: held for job, held in line["plan"].items() if job not in undone}
    return found


def job_table(plain: Sequence[JobRun], hadar: Sequence[JobRun]) -> Table:
    """Return the jobs side by side: GPU types, migrations and JCT of each."""
    # Narrow enough for a terminal of 80 columns.
    title = f"The same {len(plain)} jobs, without and with hadard"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("job", "model (batch)", "size"):
        table.add_column(heading, no_wrap=True)
    for run in ("plain on", "hadar on"):
        table.add_column(run, min_width=9, overflow="fold")
        table.add_column("moves", justify="right", min_width=5)
        table.add_column("JCT", justify="right", no_wrap=True)
    by_name = {run.job.name: run for run in hadar}
    for before in plain:
        after = by_name[before.job.name]
        name = before.job.name.removeprefix("demo-")
        model = before.job.workload.replace("batch size ", "")
        table.add_row(name, model, str(before.job.num_gpus), *_cells(before), *_cells(after))
    return table


def _cells(run: JobRun) -> tuple[str, str, str]:
    gpu_types = [name for name, _ in groupby("+".join(s.gang.gpus_by_type) for s in run.segments)]
    jct = f"{run.jct_s:.1f} s" if run.has_finished else run.state
    return " ".join(gpu_types), str(max(0, len(run.segments) - 1)), jct


def killed_text(runs: Sequence[JobRun]) -> str:
    """Return how many jobs Slurm ended at their time limits, and the share of the GPU time lost.

    "" where there is none.
    """
    killed, held_s = [run for run in runs if run.is_killed], sum(run.gpu_s for run in runs)
    if not killed:
        return ""
    lost = sum(run.gpu_s for run in killed) / max(held_s, 1e-9)
    return f"{len(killed)}, {lost:.0%} of GPU time"


# What the gain stands for.
_ASSUMED = (
    "One run, and the best case: jobs state throughputs and steps and may be migrated; under plain "
    "Slurm they take any GPU type. hadar compare says what your own history would gain."
)


def total_table(plain: Summary, hadar: Summary, killed: tuple[str, str] = ("", "")) -> Table:
    """Return the figures of both runs and the gain with hadard.

    `killed` says of both which jobs their time limits ended (`killed_text`).
    """
    table = Table(title="In all", title_justify="left", caption=_ASSUMED, caption_justify="left")
    for heading in ("", "plain Slurm", "hadar", "gain"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("jobs finished", str(plain.finished), str(hadar.finished), "")
    if any(killed):
        table.add_row("ended by their time limit", *(text or "-" for text in killed), "")
    for name, before, after in (
        ("total time (TTD)", plain.ttd_s, hadar.ttd_s),
        ("mean completion time (JCT)", plain.mean_jct_s, hadar.mean_jct_s),
    ):
        gain = 1 - after / before if before else 0.0
        change = f"{abs(gain):.0%} {'less' if gain >= 0 else 'more'}"
        table.add_row(name, f"{before:.1f} s", f"{after:.1f} s", change)
    table.add_row("moves", str(plain.moves), str(hadar.moves), "")
    for gpu_type, share in plain.utilization.items():
        after = hadar.utilization[gpu_type]
        table.add_row(f"{gpu_type} in use", f"{share:.0%}", f"{after:.0%}", "")
    return table


def summary_tree(
    plain: Sequence[JobRun],
    hadar: Sequence[JobRun],
    capacity: Mapping[str, int],
    mismatches: Sequence[str],
) -> dict[str, object]:
    """Return the content of `summary.json`; times in seconds."""
    runs = {"plain_slurm": plain, "hadar": hadar}
    return {
        "jobs": len(plain),
        **{name: _run_tree(run, capacity) for name, run in runs.items()},
        "plan_mismatches": list(mismatches),
        "per_job": [
            {
                "name": before.job.name,
                "workload": before.job.workload,
                "gpus": before.job.num_gpus,
                "steps": before.job.total_steps,
                **{
                    name: {
                        "job_id": run.job_id,
                        "state": run.state,
                        "jct_s": round(run.jct_s, 3),
                        "moves": max(0, len(run.segments) - 1),
                        "gpu_types": [list(s.gang.gpus_by_type) for s in run.segments],
                    }
                    for name, run in zip(runs, (before, after), strict=True)
                },
            }
            for before, after in product(plain, hadar)
            if after.job.name == before.job.name
        ],
    }


def _run_tree(runs: Sequence[JobRun], capacity: Mapping[str, int]) -> dict[str, object]:
    summary = asdict(summarize_run(runs, capacity))
    del summary["jobs"]
    return {
        **summary,
        "lost": len(runs) - int(summary["finished"]),
        "killed": sum(run.is_killed for run in runs),
        "killed_gpu_s": sum(run.gpu_s for run in runs if run.is_killed),
        "trained_twice": sum(run.steps_trained > run.job.total_steps for run in runs),
        "states": dict(Counter(run.state for run in runs)),
    }
