"""Runs hadard for the chaos test: the real daemon, with sabotaged adapter, policy and clock.

    python -m chaos.driver CONTROL-DIRECTORY [hadard's options]

The adapter and the policy carry out the orders in the directory (`chaos.sabotage`): die before,
inside or after a step, report success without effect, time out, hang. The directory also sets the
error of the clock. Every plan is compared with that of a newly started daemon.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from chaos.sabotage import Control, Order, step_of

from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.daemon import world as daemon
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.daemon.main import main as run_daemon
from hadar_slurm.engine.modes import Mode
from hadar_slurm.errors import SlurmError, SlurmUnavailable
from hadar_slurm.policies.policy import Policy
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import Update

T = TypeVar("T")

_COMPARED_WITHIN_S = 2.0


def die() -> NoReturn:
    """End as in a crash, without cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


@dataclass
class Saboteur:
    """Determines when the current order is due, by counting the steps that match it."""

    control: Control
    _passed: int = 0
    _known: Order | None = None

    def due(self, step: str, when: str) -> Order | None:
        """Return the order if it is due now."""
        order = self.control.order()
        if order != self._known:
            self._known, self._passed = order, 0
        if order is None or (order.step, order.when) != (step, when):
            return None
        self._passed += 1
        return order if self._passed > order.skip else None

    def around(self, step: str, act: Callable[[], T]) -> T:
        """Do a step; die before or after it if an order says so."""
        for when in ("before", "after"):
            if when == "after":
                answer = act()
            if self.due(step, when):
                self.control.fire(step=step, when=when)
                die()
        return answer


@dataclass
class Sabotaged:
    """An adapter that carries out orders, and otherwise calls the real one; it logs all changes."""

    real: SlurmAdapter
    saboteur: Saboteur
    # Known once the configuration is read.
    ledger: Path | None = None
    last: SlurmState | None = None
    looked_s: float = 0.0
    ledger_seen: object = None
    shares: dict[str, float] = field(default_factory=dict)
    _blind_until_s: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def ledger_mark(self) -> object:
        """Return what changes with each write of the ledger."""
        with suppress(OSError):
            return self.ledger and self.ledger.stat().st_mtime_ns
        return None

    def read(self) -> SlurmState:
        """Read the whole state."""
        self._look()
        self.ledger_seen = self.ledger_mark()
        self.last = self._noted(self.saboteur.around("look", self.real.read))
        self.looked_s = time.monotonic()
        return self.last

    def _noted(self, reading: T) -> T:
        self.saboteur.control.note("readings")
        return reading

    def queue(self) -> dict[Any, QueueRow]:
        """Read the queue."""
        self._look()
        return self._noted(self.saboteur.around("queue", self.real.queue))

    def fair_shares(self) -> Any:
        """Return the fair-share factors, and keep them for `Replayed`."""
        self.shares = dict(self.real.fair_shares())
        return self.shares

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Make the changes, or as many of them as an order says."""
        step = step_of(changes)
        return self.saboteur.around(step, lambda: self._change(step, changes))

    def _look(self) -> None:
        order = self.saboteur.due("look", "instead")
        if order is not None:
            self.saboteur.control.fire(step="look")
            self._blind_until_s = time.monotonic() + order.lasts_s
        if time.monotonic() < self._blind_until_s:
            raise SlurmUnavailable("squeue gave no answer: so the chaos test has it")

    def _change(self, step: str, changes: Sequence[Update]) -> list[SlurmError | None]:
        control = self.saboteur.control
        if len(changes) > 1 and (order := self.saboteur.due(step, "inside")):
            made = 1 + int(order.share * (len(changes) - 1))
            control.fire(step=step, when="inside", made=made, of=len(changes))
            self._really(step, changes[:made])
            die()
        order = self.saboteur.due(step, "instead")
        if order is None:
            return self._really(step, changes)
        made = 0 if order.do == "lie" else round(order.share * len(changes))
        jobs = [str(change.job) for change in changes]
        control.fire(step=step, do=order.do, made=made, of=len(changes), jobs=jobs)
        if made:
            self._really(step, changes[:made])
        if order.do == "lie":
            return [None] * len(changes)
        time.sleep(order.lasts_s)
        lost = SlurmUnavailable("scontrol gave no answer: so the chaos test has it")
        return [lost for _ in changes]

    def _really(self, step: str, changes: Sequence[Update]) -> list[SlurmError | None]:
        jobs = [str(change.job) for change in changes]
        self.saboteur.control.note("changes", step=step, jobs=jobs, is_begun=True)
        faults = self.real.change(changes)
        wrong = {str(c.job): str(f) for c, f in zip(changes, faults, strict=True) if f}
        self.saboteur.control.note("changes", step=step, jobs=jobs, wrong=wrong)
        return faults


@dataclass
class Replayed:
    """An adapter for observing that repeats the last reading of another one."""

    seen: Sabotaged

    def __getattr__(self, name: str) -> Any:
        return getattr(self.seen.real, name)

    def read(self) -> SlurmState:
        """Return the last reading."""
        assert self.seen.last is not None
        return self.seen.last

    def fair_shares(self) -> Any:
        """Return the factors that the other adapter has read."""
        return self.seen.shares


@dataclass
class Watched:
    """A policy that hangs or dies if ordered, and compares its plans with a new daemon's."""

    real: Policy
    config: Config
    seen: Sabotaged
    world: daemon.World

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return self.real.name

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan, and log how it compares with that of a newly started daemon.

        If Slurm gives no answer to what a new daemon would ask, it is not compared.
        """
        saboteur = self.seen.saboteur
        fresh = None
        with suppress(SlurmError):  # the policy itself asks Slurm nothing
            fresh = self._seen_anew(snapshot)
        # hadard writes the ledger only once it has a plan.
        is_same_ledger = self.seen.ledger_mark() == self.seen.ledger_seen
        stood_s = time.monotonic() - self.seen.looked_s
        order = saboteur.due("plan", "instead")
        if order is not None:
            saboteur.control.fire(step="plan", do="hang")
            time.sleep(order.lasts_s)
        plan = saboteur.around("plan", lambda: self.real.plan(snapshot, round_))
        if fresh is not None:
            told = self._compared(snapshot, fresh, round_, plan)
            saboteur.control.note("plans", stood_s=stood_s, is_same_ledger=is_same_ledger, **told)
        saboteur.control.tell_plan()
        return plan

    def _seen_anew(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot that a newly started daemon would build from the last reading.

        It depends on the mode, and on the disable file, which may have changed since the reading.
        The matching snapshot is the one that lacks the fewest jobs, and then has the fewest others:
        it may have jobs that a learnt limit keeps out of the other one.
        """
        views = [
            self._view_of(mode, snapshot, is_off=is_off)
            for mode in daemon.modes(self.config).all
            for is_off in (False, True)
        ]
        known = snapshot.by_id.keys()

        def unlike(view: Snapshot) -> tuple[int, int]:
            return len(known - view.by_id.keys()), len(view.by_id.keys() - known)

        return min(views, key=unlike)

    def _view_of(self, mode: Mode, snapshot: Snapshot, *, is_off: bool) -> Snapshot:
        replayed = Replayed(self.seen)
        backend = daemon.backend_of(self.config, replayed, self.world, mode)
        backend.is_off = lambda: is_off
        fresh = backend.observe().for_policy(sizes_by_type=False)
        known = snapshot.by_id
        # A progress report written in between, even a job's first, does not count.
        jobs = [
            _as_before(job, known[job.job_id]) if job.job_id in known else job for job in fresh.jobs
        ]
        return replace(fresh, now_s=snapshot.now_s, jobs=tuple(jobs))

    def _compared(
        self, snapshot: Snapshot, fresh: Snapshot, round_: Round, plan: Plan
    ) -> dict[str, object]:
        """Return how a plan compares with that of a newly started daemon.

        A restart may lose the policy's note (docs/adr/0010), so both plans are made without it;
        `is_same_without_memory` says whether the note changes the plan.
        """
        anew = replace(round_, memory=None)
        for _ in range(3):
            begun_s = time.monotonic()
            learnt_view = with_what_was_learnt(fresh, snapshot)
            mine, theirs, learnt, again = (
                self.real.plan(view, anew) for view in (snapshot, fresh, learnt_view, snapshot)
            )
            # A stop of hadard, or a busy machine, may use up time limits and so cut off a plan: it
            # takes long then, or the same snapshot planned twice gives two plans.
            is_timely = time.monotonic() < begun_s + _COMPARED_WITHIN_S
            is_timely &= mine.allocations == again.allocations
            if is_timely and (fresh != snapshot or mine.allocations == theirs.allocations):
                break
        return {
            "is_timely": is_timely,
            "policy": self.name,
            "is_same_view": fresh == snapshot,
            "is_same_plan": mine.allocations == theirs.allocations,
            "is_same_but_for_pins": mine.allocations == learnt.allocations,
            "is_same_without_memory": mine.allocations == plan.allocations,
            "differing": [
                f"{key}: {_told(snapshot, mine, key)} here, {_told(fresh, theirs, key)} anew"
                for key in sorted(snapshot.by_id.keys() | fresh.by_id.keys())
                if snapshot.by_id.get(key) != fresh.by_id.get(key)
                or mine.by_id.get(key) != theirs.by_id.get(key)
            ],
        }


def _as_before(job: Job, known: Job) -> Job:
    """Return a job without the effects of a report written in between, and of the clock.

    How many steps a job is believed to have depends on its run time (`core.claims`).
    """
    came_up = known.phase is Phase.STARTING and job.phase is Phase.RUNNING
    phase = known.phase if came_up else job.phase
    if job.phase is Phase.RUNNING:
        # The first report of a run may announce its USR1 handler.
        spec = replace(job.spec, can_checkpoint=known.spec.can_checkpoint)
        job = replace(job, spec=spec, remarks=known.remarks)
    job = replace(job, spec=replace(job.spec, total_steps=known.spec.total_steps))
    return replace(job, progress=known.progress, phase=phase)


def with_what_was_learnt(fresh: Snapshot, snapshot: Snapshot) -> Snapshot:
    """Return a fresh snapshot with the nodes that the other one excludes after pin timeouts.

    Also without the waiting jobs that a limit keeps out of it. A newly started daemon knows neither
    of these.
    """
    known = snapshot.by_id
    jobs = [
        known[job.job_id] if job.job_id in known and _is_kept_off(known[job.job_id], job) else job
        for job in fresh.jobs
        if job.job_id in known or job.phase is not Phase.QUEUED
    ]
    return replace(fresh, jobs=tuple(jobs))


def _is_kept_off(job: Job, fresh: Job) -> bool:
    mine, theirs = job.allowed_nodes, fresh.allowed_nodes
    return mine is not None and (theirs is None or mine < theirs)


def _told(view: Snapshot, plan: Plan, key: JobId) -> str:
    job = view.by_id.get(key)
    if job is None:
        return "absent"
    gangs = plan.by_id[key].gangs if key in plan.by_id else ()
    nodes = "" if job.allowed_nodes is None else f" on {sorted(job.allowed_nodes)} only"
    return f"{job.phase}{nodes}, planned on {' '.join(map(str, gangs)) or 'nothing'}"


def stay_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    die()


@dataclass(eq=False)
class Failures(logging.Handler):
    """Notes the exceptions that hadard logs."""

    control: Control

    def __post_init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """Note one."""
        if record.exc_info:
            error = record.exc_info[1]
            text = f"{record.getMessage()}: {type(error).__name__}: {error}"
            self.control.note("failures", text=text)


@dataclass(eq=False)
class Rounds(logging.Handler):
    """Notes every round that has ended, with its error."""

    control: Control

    def __post_init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Note a round: its summary comes first, and a line for each error."""
        if record.msg.startswith("round=%d "):
            is_error = record.levelno >= logging.ERROR
            error = record.getMessage().partition(" ")[2] if is_error else ""
            self.control.note("rounds", error=error)


def main(words: Sequence[str]) -> int:
    """Run hadard until it ends."""
    control = Control(Path(words[0]))
    for name in ("hadar_slurm", "hadard"):
        logging.getLogger(name).addHandler(Failures(control))
    logging.getLogger("hadar_slurm.engine.loop").addHandler(Rounds(control))
    threading.Thread(target=stay_with, args=(os.getppid(),), daemon=True).start()
    control.begin()
    saboteur = Saboteur(control)
    adapters: list[Sabotaged] = []

    def sabotaged(name: str, runner: Runner) -> SlurmAdapter:
        adapters.append(Sabotaged(make_adapter(name, runner), saboteur))
        return adapters[-1]

    def watched(config: Config) -> Watched:
        adapters[-1].ledger = config.state_dir / daemon.LEDGER_FILE
        return Watched(daemon.policy_of(config), config, adapters[-1], world)

    world = daemon.World(lambda: time.time() + control.clock(), sabotaged, watched)
    return run_daemon(words[1:], world)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
