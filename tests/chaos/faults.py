"""The faults of a run, drawn from a seed before the run. Pure.

The same seed and number give the same faults in the same order. A fault selects its job or node by
a share of those that exist when it is injected (`Fault.pick`), since these depend on the run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """The kinds of faults, by their names in the report."""

    KILL_AT_STEP = "hadard killed at a step"
    KILL = "hadard killed"
    STOP = "hadard stopped, continued"
    STOP_AND_KILL = "hadard stopped, killed"
    TERMINATE = "hadard terminated"
    RELOAD = "configuration changed"
    RELOAD_BROKEN = "configuration broken"
    DISABLE = "hadard switched off"
    CONTROLLER_RESTART = "slurmctld restarted"
    CONTROLLER_AWAY = "slurmctld away"
    NODE_DEATH = "node dead"
    NODE_STOP = "node stopped"
    NODE_CUT = "node cut off"
    CANCEL = "user cancels"
    REQUEUE = "user requeues"
    HOLD = "user holds"
    RELEASE = "user releases"
    CHOOSE_NODE = "user names a node"
    EXCLUDE_NODE = "user excludes a node"
    LEAVE = "user leaves hadar"
    COMMENT = "comment destroyed"
    REPORT = "progress report destroyed"
    DRAIN = "operator drains"
    FULL_JOURNAL = "disk full: journal"
    FULL_STATE = "disk full: state_dir"
    FULL_RUN = "disk full: run_dir"
    LIE = "command lies"
    TIME_OUT = "command times out"
    BLIND = "Slurm not to be seen"
    HANG = "solver hangs"
    CLOCK = "clock jumps"
    EDIT = "users edit waiting jobs"
    NODE_REMOVED = "node removed, added"
    NODE_RENAMED = "node renamed"
    GPUS_RETYPED = "GPU type renamed"
    GPUS_UNTYPED = "GPU type removed, added"
    PARTITION = "partition changed"
    FEATURES = "node features changed"
    QOS = "QOS changed"
    FAIL_OVER = "slurmctld fails over"
    NOISE = "Slurm's commands warn"


# The number of cards of each kind in a deck; faults are dealt from shuffled decks.
WEIGHTS = {
    Kind.KILL_AT_STEP: 12,
    Kind.KILL: 2,
    Kind.STOP: 2,
    Kind.STOP_AND_KILL: 1,
    Kind.TERMINATE: 2,
    Kind.RELOAD: 2,
    Kind.RELOAD_BROKEN: 1,
    Kind.DISABLE: 1,
    Kind.CONTROLLER_RESTART: 2,
    Kind.CONTROLLER_AWAY: 2,
    Kind.NODE_DEATH: 2,
    Kind.NODE_STOP: 1,
    Kind.NODE_CUT: 2,
    Kind.CANCEL: 2,
    Kind.REQUEUE: 2,
    Kind.HOLD: 2,
    Kind.RELEASE: 1,
    Kind.CHOOSE_NODE: 1,
    Kind.EXCLUDE_NODE: 1,
    Kind.LEAVE: 1,
    Kind.COMMENT: 1,
    Kind.REPORT: 1,
    Kind.DRAIN: 1,
    Kind.FULL_JOURNAL: 1,
    Kind.FULL_STATE: 1,
    Kind.FULL_RUN: 1,
    Kind.LIE: 3,
    Kind.TIME_OUT: 2,
    Kind.BLIND: 1,
    Kind.HANG: 2,
    Kind.CLOCK: 3,
    Kind.EDIT: 5,
    Kind.NODE_REMOVED: 2,
    Kind.NODE_RENAMED: 1,
    Kind.GPUS_RETYPED: 2,
    Kind.GPUS_UNTYPED: 1,
    Kind.PARTITION: 2,
    Kind.FEATURES: 1,
    Kind.QOS: 1,
    Kind.FAIL_OVER: 1,
    Kind.NOISE: 1,
}

# The steps of a round: a read of Slurm, the plan, a read of the queue, then the batches of changes,
# each named after its purpose (`chaos.sabotage`). hadard may also be killed inside a batch.
KILL_POINTS = (
    *((step, when) for step in ("look", "plan", "queue") for when in ("before", "after")),
    *(
        (step, when)
        for step in ("ask", "requeue", "hold", "pin", "release", "steer")
        for when in ("before", "inside", "after")
    ),
)
CHANGES = ("ask", "requeue", "pin", "release", "steer")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; times in seconds.

    `pause_s` is the time until the next fault, `lasts_s` the duration of a fault that ends by
    itself, `absence_s` how long hadard is stopped or hangs, `restart_s` the delay of its restart,
    and `has_stop_post` whether `hadar release` runs before that. `pick` and `share` are from 0
    to 1.
    """

    kind: Kind
    pause_s: float
    lasts_s: float
    absence_s: float
    restart_s: float
    has_stop_post: bool
    step: str
    when: str
    skip: int
    pick: float
    share: float
    jump_s: float


def draw_faults(seed: int, count: int, kinds: Sequence[Kind] = tuple(Kind)) -> tuple[Fault, ...]:
    """Return `count` faults of these kinds."""
    draw = random.Random(seed)
    dealt = _dealt(draw, [kind for kind in kinds for _ in range(WEIGHTS[kind])])
    points = _dealt(draw, KILL_POINTS)
    changes = _dealt(draw, CHANGES)
    return tuple(_fault(draw, next(dealt), points, changes) for _ in range(count))


def _dealt(draw: random.Random, cards: Sequence[T]) -> Iterator[T]:
    """Deal shuffled decks without end; each deck has every card once."""
    while True:
        yield from draw.sample(cards, len(cards))


def _fault(
    draw: random.Random, kind: Kind, points: Iterator[tuple[str, str]], changes: Iterator[str]
) -> Fault:
    # Usually a few seconds; one time in 20 so long that the reaper has to release the jobs.
    restart_s = draw.choice([10 * draw.random() ** 2] * 19 + [draw.uniform(22, 28)])
    step, when = next(points) if kind is Kind.KILL_AT_STEP else (next(changes), "instead")
    minutes = draw.choice([1, 3, 10, 60, 180])
    return Fault(
        kind=kind,
        pause_s=draw.uniform(0.3, 2.5),
        lasts_s=draw.uniform(2.0, 18.0),
        absence_s=draw.choice([draw.uniform(2.0, 6.0), draw.uniform(12.0, 22.0)]),
        restart_s=restart_s,
        has_stop_post=draw.random() < 0.5,
        step=step,
        when=when,
        skip=draw.choice([0, 0, 0, 1]),
        pick=draw.random(),
        share=draw.random(),
        jump_s=60.0 * minutes * draw.choice([-1, 1]),
    )
