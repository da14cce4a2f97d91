"""How long a round with migrations takes: from the decision until the last job runs again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.plan import Plan
from hadar_slurm.engine.actions import Status
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.handoff import report_path, user_reports
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner

# A job that saves at once when it is asked to, and takes no CPU.
PROGRAM = """#!/bin/sh
own=$HADAR_SPOOL/$SLURM_JOB_ID
report() {
    mkdir -p "$own"
    printf '{"version":1,"restart":%d,"state":"%s","steps_done":7}' \
        "${SLURM_RESTART_COUNT:-0}" "$1" > "$own/new"
    mv "$own/new" "$own/progress.json"
}
trap 'report saved' USR1
trap 'exit 0' TERM
report running
while :; do sleep 1000 & wait $!; done
"""


def submit(runner: Runner, directory: Path, *words: str) -> JobId:
    """Submit a held job that runs `PROGRAM`, its script in `directory`."""
    script = directory / "job.sh"
    script.write_text(PROGRAM)
    argv = ["sbatch", "--parsable", "--hold", "--requeue", "--output=/dev/null", "--chdir=/tmp"]
    return JobId(runner.run([*argv, *words, str(script)]).strip())


def measure_move(
    backend: SlurmBackend, before: Mapping[JobId, Gang], after: Mapping[JobId, Gang]
) -> dict[str, float | int | str]:
    """Place jobs `before`, move them all `after` in one round, and return what that took."""
    carry_out(backend, before)
    wait(lambda: are_on(backend.slurm, before))
    own = user_reports(backend.settings.spool, os.geteuid())
    wait(lambda: all(report_path(own, job).exists() for job in before))
    decided_s = time.perf_counter()
    carry_out(backend, after)
    applied_s = time.perf_counter() - decided_s
    wait(lambda: are_on(backend.slurm, after))
    return {
        "measure": "move",
        "adapter": backend.slurm.name,
        "jobs": len(before),
        "applied_s": round(applied_s, 2),
        "last_runs_s": round(time.perf_counter() - decided_s, 2),
    }


def carry_out(backend: SlurmBackend, gangs: Mapping[JobId, Gang]) -> None:
    """Put jobs on their gangs, all of which must go well."""
    plan = Plan.of({job: Allocation.rigid(gang) for job, gang in gangs.items()}, {})
    outcomes = backend.apply(reconcile(backend.observe(), plan))
    wrong = [outcome for outcome in outcomes if outcome.status is not Status.DONE]
    if wrong:
        sys.exit(f"a move went wrong: {wrong[0]}")


def are_on(slurm: SlurmAdapter, gangs: Mapping[JobId, Gang]) -> bool:
    """Return whether Slurm shows all jobs running on the nodes of their gangs."""
    queue = slurm.queue()
    return all(
        queue[job].state == "RUNNING" and set(queue[job].nodes) == set(gang.gpus_by_node)
        for job, gang in gangs.items()
    )


def wait(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    """Wait until `condition` holds."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit(f"not so after {limit_s:g} s")
        time.sleep(0.02)
