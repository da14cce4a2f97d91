"""One run: a world, a workload, faults one after another, and the final checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chaos.case import Case
from chaos.constancy import changed_while_running, resizes
from chaos.excuses import Record, excused_edits, releases_in, starts_in
from chaos.faults import Fault, Kind
from chaos.injecting import Injector
from chaos.invariants import (
    FREE,
    LAUNCH_FAILED,
    TRAINED,
    WELL,
    Finding,
    failures,
    fate,
    kept_by_begin_time,
    plan_differences,
    two_at_once,
    untrue_training,
)
from chaos.keeping import Keeper, Reaper
from chaos.observer import Observer
from chaos.progress import Spells, stalls
from chaos.workload import Task, Workload
from chaos.world import LIFE_S, World
from integration.site import Gpu

from hadar_slurm.errors import HadarError

# The reaper's period, and the time after which it must have released every job. Both are a third of
# those in docs/fail-open.md, 15 and 45 s, as is the lifetime of the heartbeat.
REAPER_S = LIFE_S / 2
STATED_S = LIFE_S + REAPER_S
# Time for the release itself on a busy machine, where a start of Python alone takes seconds; or as
# long as two of its last runs took there, up to a limit.
RELEASE_S, _MOST_RELEASE_S = 6.0, 20.0
LEVEL = 16
_TICK_S = 0.05
# The longest time without a round that succeeded: ten rounds, and on a busy machine that of some
# starts of Python in addition.
STALL_S, _STARTS = 20.0, 4
# Slurm counts as away, or the machine as too busy, after this time without a sample.
_UNSEEN_S = 3.0
# Faults after which another slurmctld answers.
_REPLACING = (Kind.CONTROLLER_RESTART, Kind.CONTROLLER_AWAY, Kind.FAIL_OVER)
# Faults that keep rounds from succeeding until all has recovered.
_STOPPING = (
    Kind.BLIND,
    Kind.HANG,
    Kind.TIME_OUT,
    Kind.CONTROLLER_RESTART,
    Kind.CONTROLLER_AWAY,
)
# During this many last faults no job with a dependency is submitted.
_LAST = 12
_RECOVERY_LIMIT_S = 90.0
_SETTLE_LIMIT_S = 150.0


@dataclass
class Run:
    """One run of the chaos test; `show` is called with its progress."""

    world: World
    faults: Sequence[Fault]
    seed: int
    show: Callable[[int, str], None] = lambda done, words: None
    cases: list[Case] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    begun_s: float = 0.0
    # When hadard had made its first plan.
    planned_s: float = 0.0
    settled_s: float = 0.0
    lost_gpus: set[Gpu] = field(default_factory=set)
    spells: Spells = field(default_factory=Spells)
    _crash: BaseException | None = None

    def __post_init__(self) -> None:
        self.workload = Workload(self.world, self.seed, LEVEL)
        self.observer = Observer(self.world, self.workload.tasks, STATED_S + RELEASE_S)
        self.keeper = Keeper(self.world, self.observer)
        self.reaper = Reaper(self.world, REAPER_S)
        self.injector = Injector(
            self.world, self.keeper, self.observer, self.workload, self.go_on_until
        )
        self.slurm = self.world.run(["scontrol", "--version"]).out.split()[-1]
        self._ends = threading.Event()
        self._newest_plan: tuple[float, int] = (0.0, 0)

    def go(self) -> None:
        """Run the jobs and the faults, then the final checks."""
        self.begun_s = time.time()
        with self._beside():
            if not self.go_on_until(lambda: self._has_planned_since(self.begun_s), 45):
                raise HadarError(f"hadard does not begin: {self.world.told('hadard.log')}")
            self.planned_s = time.time()
            self.go_on_until(lambda: self.observer.holding() >= 4, 30)
            for number, fault in enumerate(self.faults, start=1):
                self._relax()
                self.workload.may_depend = len(self.faults) - number > _LAST
                self.show(number - 1, str(fault.kind))
                self.cases.append(self.injector.inject(number, fault))
                self.go_on_until(lambda: False, fault.pause_s)
            self.show(len(self.faults), "waiting for the jobs to end")
            self._settle()
            self.settled_s = time.time()
            self.spells.close(self.settled_s)
        self._reckon()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Observe Slurm and submit jobs, each in a thread."""
        threads = [
            threading.Thread(target=self._repeat, args=(act, every_s), daemon=True)
            for act, every_s in (
                (self.observer.look, self.world.look_every_s),
                (lambda: self.workload.feed(self.observer.num_live()), 0.2),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self.keeper.end()
            self.reaper.end()
            for thread in threads:
                thread.join(60)

    def _repeat(self, act: Callable[[], object], every_s: float) -> None:
        try:
            while not self._ends.wait(every_s):
                act()
        except BaseException as error:
            self._crash = error

    def go_on_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Run until a condition holds, for `limit_s` at most; return whether it holds."""
        deadline_s = time.monotonic() + limit_s
        while True:
            self._tick()
            if condition():
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_TICK_S)

    def _tick(self) -> None:
        if self._crash is not None:
            raise RuntimeError("a part of the test failed") from self._crash
        self.keeper.tick()
        self.reaper.tick()
        slow_s = 2 * max(self.reaper.took_s, default=0.0)
        self.observer.limit_s = STATED_S + min(max(RELEASE_S, slow_s), _MOST_RELEASE_S)
        self._read_plans()
        self.observer.is_excused = self._is_excused()
        self.spells.note(time.time(), is_excused=self.observer.is_excused)
        for case in self.cases:
            if case.undo is not None and time.time() >= case.undo_at_s:
                undo, case.undo = case.undo, None
                undo()
                case.ended_s = time.time()
            self._see_whether_well(case)

    def _is_excused(self) -> bool:
        """Return whether a fault keeps rounds from succeeding."""
        return (
            self.observer.gone_since_s is not None
            or not self.keeper.is_alive
            or self.keeper.is_stopped
            or self.injector.is_controller_away
            or time.time() > self.observer.newest_s + _UNSEEN_S
            or any(case.well_s is None and case.fault.kind in _STOPPING for case in self.cases)
        )

    def _read_plans(self) -> None:
        self._newest_plan = time_s, _ = self.world.control.newest_plan()
        gone_s = self.observer.gone_since_s
        if gone_s is not None and time_s > gone_s and not self.keeper.is_stopped:
            self.keeper.note_sign_of_life()

    def _has_planned_since(self, time_s: float) -> bool:
        """Return whether hadard runs and has made a plan after `time_s`."""
        planned_s, _ = self._newest_plan
        return planned_s > time_s and self.keeper.is_alive and not self.keeper.is_stopped

    def _see_whether_well(self, case: Case) -> None:
        if case.well_s is not None or case.ended_s is None:
            return
        ended_s = case.ended_s
        if (not case.needs_plan or self._has_planned_since(ended_s)) and (
            self.observer.newest_s > ended_s and case.is_well()
        ):
            case.well_s = time.time()

    def _relax(self) -> None:
        """Wait until fewer than four faults have not recovered, for 20 s at most."""
        self.go_on_until(lambda: sum(case.well_s is None for case in self.cases) < 4, 20)

    def _settle(self) -> None:
        """End all faults and wait until all jobs have ended."""
        self.workload.is_open = False
        self.go_on_until(lambda: all(case.undo is None for case in self.cases), 60)
        until_s = time.monotonic() + _SETTLE_LIMIT_S
        while time.monotonic() < until_s:
            left = self.observer.num_live()
            self.show(len(self.faults), f"waiting for {left} jobs to end")
            if not left:
                break
            self._help_slurm()
            self.go_on_until(lambda: self.observer.num_live() == 0, 5)
        self.go_on_until(lambda: all(case.well_s is not None for case in self.cases), 30)

    def _help_slurm(self) -> None:
        """Shorten begin delays, release jobs that Slurm holds, and recover lost GPUs.

        Slurm delays a job that it has requeued by two minutes, and holds one that its node did not
        launch. 22.05.8 may count GPUs as allocated that no job holds, until it is restarted.
        """
        live = self.observer.live()
        for job in live:
            if job.reason == "BeginTime" and job.priority > 0:
                self.world.run(["scontrol", "update", f"JobId={job.key}", "StartTime=now+1"])
            if job.reason == LAUNCH_FAILED:
                self.world.run(["scontrol", "release", job.key])
        if self.observer.lost_gpus and all(job.state == "PENDING" for job in live):
            self.lost_gpus |= self.observer.lost_gpus
            self.injector.restart_controller()

    def _reckon(self) -> None:
        """Check the end and the training of every job, every plan, and every fault's recovery."""
        self.world.fetch()
        control, tasks = self.world.control, self.workload.tasks
        seen = self.observer.findings
        replaced_s = [c.begun_s for c in self.cases if c.fault.kind in _REPLACING]
        log, rounds = self.world.controller_log(), list(control.notes("rounds"))
        readings, changes = list(control.notes("readings")), list(control.notes("changes"))
        replaced_s += starts_in(log)
        record = Record(changes, readings, rounds, replaced_s, releases_in(log))
        self.findings += excused_edits(seen, tasks, record)
        span = self.planned_s, self.settled_s
        self.findings += stalls(
            rounds, self.spells, span, STALL_S + _STARTS * self.reaper.slowest_s
        )
        named = {
            past.last.raw_id: tasks[key].spans_of("ReqNodeList")
            for key, past in self.observer.pasts.items()
            if key in tasks
        }
        self.findings += resizes(log, self.world.ended_runs(), named)
        self.findings += plan_differences(self.world.control.notes("plans"))
        self.findings += failures(self.world.control.notes("failures"))
        requeues = self._requeues()
        for key, task in self.workload.tasks.items():
            self.findings += self._reckoned(key, task, requeues.get(key, ()))
        for case in self.cases:
            if case.well_s is None:
                what = f"fault {case.number}, {case.fault.kind}: {case.done}"
                self.findings.append(Finding(WELL, "", case.begun_s, what))

    def _requeues(self) -> dict[str, list[float]]:
        """Return the times at which hadard requeued jobs, by job."""
        times: dict[str, list[float]] = {}
        for note in self.world.control.notes("changes"):
            for job in note["jobs"] if note["step"] == "requeue" else ():
                times.setdefault(job, []).append(note["time_s"])
        return times

    def _reckoned(self, key: str, task: Task, requeues: Sequence[float]) -> Iterator[Finding]:
        past = self.observer.pasts.get(key)
        wrong = fate(task, past, requeues)
        if wrong is not None:
            yield wrong
        if past is None:
            return
        yield from changed_while_running(key, past, task)
        kept_s, requeued_s = kept_by_begin_time(task, past, requeues, STATED_S + RELEASE_S)
        if kept_s:
            what = (
                f"requeued by hadard, then kept from starting for {kept_s:.0f} s by its begin time"
            )
            apart = "its user released it" if task.released_s > requeued_s else ""
            yield Finding(FREE, key, past.seen_s, what, apart)
        if past.last.state != "COMPLETED":
            return
        raw_id = past.last.raw_id
        history = self.world.trained(task.user, raw_id, "history.jsonl")
        result = self.world.trained(task.user, raw_id, "result.json")
        untrue = untrue_training(history, result, self._expected(task.steps))
        if untrue:
            apart = "Slurm ran it twice at once" if two_at_once(history) else ""
            yield Finding(TRAINED, key, past.last.ended_s, untrue, apart)

    def _expected(self, steps: int) -> dict[str, Any]:
        if steps not in self._results:
            self._results[steps] = self.world.uninterrupted(steps)
        return self._results[steps]

    _results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run."""
        pasts = self.observer.pasts
        states = [pasts[key].last.state for key in self.workload.tasks if key in pasts]
        plans = list(self.world.control.notes("plans"))
        changes = [n for n in self.world.control.notes("changes") if "wrong" in n]
        return {
            "wall_s": round(time.time() - self.begun_s, 1),
            "jobs": len(self.workload.tasks),
            "jobs_completed": states.count("COMPLETED"),
            "jobs_cancelled": states.count("CANCELLED"),
            "submissions_refused": len(self.workload.failures),
            "restarts_of_jobs": sum(
                pasts[key].last.restarts for key in self.workload.tasks if key in pasts
            ),
            "samples": self.observer.samples,
            "hadard_starts": self.keeper.starts,
            "hadard_most_rss_mb": round(self.keeper.most_rss_mb),
            "gpus_lost_by_slurm": len(self.lost_gpus),
            "reaper_runs": self.reaper.runs,
            "rounds_planned": len(plans),
            "plans_of_a_restarted_hadard_equal": sum(note["is_same_plan"] for note in plans),
            "plans_changed_by_memory": sum(not note["is_same_without_memory"] for note in plans),
            "change_batches": len(changes),
            "jobs_moved": sum(len(n["jobs"]) for n in changes if n["step"] == "requeue"),
            "sign_of_life_s": LIFE_S,
            "reaper_every_s": REAPER_S,
            "stated_s": STATED_S,
            "longest_wait_after_death_s": round(self.observer.waits.longest_s, 1),
        }
