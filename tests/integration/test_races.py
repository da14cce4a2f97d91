"""A user's change between hadard's observation and its commands is not undone.

Slurm leaves one gap: a job cancelled in the milliseconds between the last observation and its
requeue is pending again, and Slurm shows no sign of the cancellation afterwards (22.05.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from integration.site import REPORT, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.plan import Plan
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.runner import Runner

pytestmark = pytest.mark.slurm

LONG = 10**6  # steps of a job that outlasts its test
EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
N1, N2, N3 = (
    Gang.of({(node, gpu_type): 2})
    for node, gpu_type in (("n1", "v100"), ("n2", "v100"), ("n3", "p100"))
)


def outcomes_of(
    backend: SlurmBackend, plan: dict[JobId, Gang], meanwhile: Sequence[Sequence[str]] = ()
) -> dict[tuple[type, JobId], Outcome]:
    """Observe, run the commands `meanwhile`, carry out `plan`, and return the outcomes."""
    snapshot = backend.observe()
    actions = reconcile(
        snapshot, Plan.of({job: Allocation.rigid(gang) for job, gang in plan.items()}, {})
    )
    assert isinstance(backend.slurm, CommandLine)
    for argv in meanwhile:
        backend.slurm.runner.run(argv)
    return {(type(o.action), o.action.job_id): o for o in backend.apply(actions)}


def check_stays_cancelled(site: Site, job: JobId) -> None:
    """Fail unless a job is cancelled, and still so after another round."""
    eventually(lambda: site.state(job) == "CANCELLED", lambda: site.told(job))
    site.once()
    assert site.state(job) == "CANCELLED"
    assert not site.gpus(job)


def test_a_job_cancelled_before_its_start_stays_cancelled(site: Site) -> None:
    """The start of a cancelled job is deferred, and the other job starts."""
    gone, other = (site.train(EQUAL, held=True, steps=LONG) for _ in range(2))
    outcomes = outcomes_of(site.backend(), {gone: N1, other: N2}, [["scancel", gone]])
    assert outcomes[Start, gone].status is Status.DEFERRED
    assert outcomes[Start, other].status is Status.DONE
    site.until_running(other)
    assert site.tree(other) == {"n2": {"v100": 2}}
    check_stays_cancelled(site, gone)


def test_a_job_cancelled_before_its_move_stays_cancelled(site: Site) -> None:
    """Stop and start of a cancelled job are deferred, and the other job is migrated."""
    gone, other = (site.train(EQUAL, held=True, steps=LONG) for _ in range(2))
    backend = site.backend()
    outcomes_of(backend, {gone: N1, other: N2})
    site.until_running(gone, other)
    eventually(lambda: site.steps(gone) > 0 and site.steps(other) > 0, "first reports")
    outcomes = outcomes_of(backend, {gone: N3, other: N1}, [["scancel", gone]])
    assert outcomes[Stop, gone].status is Status.DEFERRED
    assert outcomes[Start, gone].status is Status.DEFERRED
    assert outcomes[Stop, other].status is Status.DONE
    check_stays_cancelled(site, gone)
    site.until_running(other)
    assert site.queue()[other].restarts == 1


def test_a_job_cancelled_while_it_saves_stays_cancelled(site: Site) -> None:
    """A job that its user cancels during its grace period is not requeued."""
    deaf = site.script("deaf", "trap '' USR1", REPORT, "sleep 600")
    job = site.train(EQUAL, held=True, steps=LONG, script=deaf)
    backend = site.backend()
    outcomes_of(backend, {job: N1})
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, "its report")
    cancel = ["scancel", job]
    pause = backend.sleep

    def sleep(seconds: float) -> None:
        if cancel:
            site.run(cancel)
            cancel.clear()
        pause(seconds)

    backend.sleep = sleep
    outcomes = outcomes_of(backend, {job: N3})
    assert not cancel
    assert outcomes[Stop, job].status is Status.DEFERRED
    check_stays_cancelled(site, job)


@dataclass(frozen=True, slots=True)
class Meddled(Runner):
    """A runner that runs a user's command before the first batch with the word `before`."""

    before: str = ""
    meddle: tuple[str, ...] = ()
    done: list[str] = field(default_factory=list)

    def complaints(self, argv: Sequence[str], *, stdin: str) -> str:
        """Make the changes, after the other command when it is due."""
        if self.before in stdin.split() and not self.done:
            self.done.append(self.before)
            Runner.run(self, self.meddle)
        return Runner.complaints(self, argv, stdin=stdin)


def meddled(site: Site, before: str, *meddle: str) -> Meddled:
    """Return a runner that runs `meddle` right before the first batch with the word `before`."""
    own = site.runner
    return Meddled(own.slurm_conf, own.timeout_s, own.environment, before=before, meddle=meddle)


def test_a_job_cancelled_before_its_release_stays_cancelled(site: Site) -> None:
    """hadard's release does not requeue a cancelled job."""
    job = site.train(EQUAL, held=True, steps=LONG)
    runner = meddled(site, "release", "scancel", job)
    outcomes = outcomes_of(site.backend(runner), {job: N1})
    assert runner.done
    assert outcomes[Start, job].status is not Status.DONE
    check_stays_cancelled(site, job)
