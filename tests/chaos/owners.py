"""The faults that the owners of jobs cause: what users do to their own jobs at any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.case import Case
from chaos.constancy import LENT, shown_value
from chaos.faults import Kind
from chaos.records import Sighting, sightings
from chaos.sabotage import Order
from chaos.workload import HOLD, Edit, Task

if TYPE_CHECKING:
    from chaos.injecting import Injector

_SPOILT = ("", "{", '{"restart": 0, "state": "saved", "steps_done": 1e99, "version": 1}', "[1]")
# Values that any job of the workload may have and still start.
_EDITS = (
    ("Nice", "700"),
    ("TimeLimit", "03:00:00"),
    ("Features", "v100|p100|k80"),
    ("QOS", "extra"),
)
# How long a plan is kept waiting for owners' edits after Slurm has been read, and the most edits.
_BETWEEN_S, _MOST_EDITS = 0.8, 4


@dataclass
class Owners:
    """What owners do, through the injector."""

    injector: Injector

    def handlers(self) -> dict[Kind, Callable[[Case], None]]:
        """Return the method of each kind."""
        return {
            Kind.CANCEL: self._cancel,
            Kind.REQUEUE: self._requeue,
            Kind.HOLD: self._hold,
            Kind.RELEASE: self._release,
            Kind.CHOOSE_NODE: self._choose,
            Kind.EXCLUDE_NODE: self._exclude,
            Kind.EDIT: self._edit,
            Kind.LEAVE: self._leave,
            Kind.COMMENT: self._comment,
            Kind.REPORT: self._report,
        }

    def update(self, case: Case, task: Task, change: str) -> bool:
        """Have a job's owner change it; return whether Slurm did so."""
        argv = ["scontrol", "update", f"JobId={task.key}", change]
        return self.injector.say(case, argv, task.user).status == 0

    def change(self, case: Case, task: Task, name: str, value: str) -> None:
        """Have a job's owner change a field, which from then on has to keep its value."""
        before = task.edits.get(name)
        shown = self._shown(task.key)
        own = before.value if before is not None else LENT.get(name)
        is_own = shown is None or own is None or shown_value(shown, name) == own
        # While the command runs, and after one that failed, the field may have either value.
        task.edits.pop(name, None)
        begun_s = time.time()
        is_new = shown is None or shown_value(shown, name) != value
        if not self.update(case, task, f"{name}={value}") or not is_new:
            return  # an edit to what Slurm shows already cannot be seen
        # Slurm 22.05.8 may ignore a nice value without an error.
        shown = self._shown(task.key) if name == "Nice" else None
        if shown is None or shown_value(shown, name) == value:
            task.note(name, Edit(value, begun_s, time.time(), name in LENT and is_own))

    def _shown(self, key: str) -> Sighting | None:
        done = self.injector.world.run(["scontrol", "show", "job", "-o", key], limit_s=10)
        return next((job for job in sightings(done.out) if job.key == key), None)

    def target(
        self, case: Case, suits: Callable[[Sighting], bool] = lambda job: True
    ) -> tuple[Sighting, Task] | None:
        """Choose one of the live jobs that suit and were submitted with hadar-sbatch."""
        tasks = self.injector.workload.tasks
        there = [
            job
            for job in self.injector.observer.live()
            if tasks[job.key].is_described and suits(job)
        ]
        if not there:
            self.injector.skip(case, "no job is there for it")
            return None
        job = there[int(case.fault.pick * len(there))]
        case.done = f"job {job.key}, {job.state.lower()}"
        tasks[job.key].done_to.append(str(case.fault.kind))
        case.needs_plan = False
        return job, tasks[job.key]

    def _cancel(self, case: Case) -> None:
        if target := self.target(case):
            job, task = target
            at_s = time.time()
            if self.injector.say(case, ["scancel", job.key], task.user).status == 0:
                task.cancelled_s = at_s
                case.is_well = lambda: self.injector.observer.pasts[job.key].last.is_final
            else:
                task.may_be_cancelled = True

    def _requeue(self, case: Case) -> None:
        # 22.05.8 may never again give GPUs to a job requeued on an absent node (docs/slurm.md).
        def suits(job: Sighting) -> bool:
            return job.state == "RUNNING" and not any(
                gpu.node in self.injector.out for gpu in job.gpus
            )

        if target := self.target(case, suits):
            self.injector.say(case, ["scontrol", "requeue", target[0].key], target[1].user)

    def _hold(self, case: Case) -> None:
        if target := self.target(case, lambda job: job.state == "PENDING"):
            job, task = target
            shown = self._shown(job.key)
            was_held = shown is None or shown.is_held
            task.held_s = time.time()
            done = self.injector.say(case, ["scontrol", "uhold", job.key], task.user)
            # Slurm shows no difference between hadard's hold and a further one of the owner.
            if done.status == 0 and not was_held:
                task.note(HOLD, Edit("hold", task.held_s, time.time()))

            def release() -> None:
                task.edits.pop(HOLD, None)
                task.released_s = time.time()
                self.injector.wait(lambda: self._is_released(job.key), 20)
                task.held_s = None

            self.injector.later(case, release)

    def _is_released(self, key: str) -> bool:
        done = self.injector.world.run(["scontrol", "release", key], limit_s=10)
        return done.status == 0 or "Invalid job id" in done.err or "ended" in done.err

    def _release(self, case: Case) -> None:
        if target := self.target(case, lambda job: job.is_held):
            target[1].released_s = time.time()
            target[1].edits.pop(HOLD, None)
            self.injector.say(case, ["scontrol", "release", target[0].key], target[1].user)

    def _choose(self, case: Case) -> None:
        if target := self.target(case, lambda job: job.state == "PENDING"):
            _, task = target
            task.named = self._node_but(case, task.excluded)
            case.done += f" to {task.named}"
            self.change(case, task, "ReqNodeList", task.named)

    def _exclude(self, case: Case) -> None:
        if target := self.target(case, lambda job: job.state == "PENDING"):
            _, task = target
            task.excluded = self._node_but(case, task.named)
            case.done += f" off {task.excluded}"
            self.change(case, task, "ExcNodeList", task.excluded)

    def _node_but(self, case: Case, other_than: str) -> str:
        """Return a node; Slurm starts no job that must have a node which it excludes."""
        gone = {other_than, *self.injector.changed_nodes}
        nodes = [name for name in self.injector.world.nodes[:4] if name not in gone]
        return nodes[int(case.fault.share * len(nodes))]

    def _edit(self, case: Case) -> None:
        """Edit waiting jobs between a round's reading of Slurm and its changes."""
        tasks = self.injector.workload.tasks
        waiting = [
            tasks[job.key]
            for job in self.injector.observer.live()
            if job.state == "PENDING" and tasks[job.key].is_described
        ]
        if not waiting:
            return self.injector.skip(case, "no job is there for it")
        control = self.injector.world.control
        control.give(Order("hang", "plan", "instead", lasts_s=_BETWEEN_S))
        self.injector.wait(lambda: control.fired() is not None, 5.0)
        control.withdraw()
        case.needs_plan = False
        first, told = int(case.fault.pick * len(waiting)), []
        known = _EDITS if self.injector.world.has_accounting else _EDITS[:-1]
        for number in range(min(len(waiting), _MOST_EDITS)):
            task = waiting[(first + number) % len(waiting)]
            name, value = known[(int(case.fault.share * len(known)) + number) % len(known)]
            task.done_to.append(str(case.fault.kind))
            self.change(case, task, name, value)
            told.append(f"{task.key}: {name}={value}")
        case.done = ", ".join(told) + case.done

    def _leave(self, case: Case) -> None:
        if target := self.target(case):
            self.injector.say(case, self.injector.world.leave_argv(target[0].key), target[1].user)

    def _comment(self, case: Case) -> None:
        # Until the ledger has a claim, only the comment marks the hold of a new job as hadard's.
        known = self.injector.world.ledger()
        if target := self.target(case, lambda job: not job.is_held or job.key in known):
            # hadar-sbatch may hold a job after its submission, and after the last sample.
            shown = self._shown(target[0].key)
            if target[0].key not in known and (shown is None or shown.is_held):
                return self.injector.skip(case, "its hold is marked by its comment alone")
            texts = ("", "mine now", '{"hadar":1', '{"hadar":1,"steps":"many"}', "{}")
            text = texts[int(case.fault.share * len(texts))]
            case.done += f" to {text!r}"
            self.update(case, target[1], f"Comment={text}")

    def _report(self, case: Case) -> None:
        if target := self.target(case, lambda job: job.state == "RUNNING"):
            text = _SPOILT[int(case.fault.share * len(_SPOILT))]
            case.done += f" to {text!r}"
            self.injector.world.spoil_report(target[0].raw_id, text)
