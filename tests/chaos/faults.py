"""The faults of a run, drawn from a seed before anything begins. Pure.

The same seed and number give the same faults in the same order. On what job or node a fault falls
is told as a share of those that are there when its turn comes, since which these are depends on
how the run went.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """What is done, in the words of the report."""

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


# How often each kind comes in one shuffled deck; faults are dealt from such decks in turn.
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
}

# The steps of a round, in its order: a look at Slurm, the plan, then the batches of changes, each
# named for what it does (`chaos.sabotage`). A batch may be cut off inside as well.
KILL_POINTS = (
    *((step, when) for step in ("look", "plan", "queue") for when in ("before", "after")),
    *(
        (step, when)
        for step in ("ask", "requeue", "hold", "pin", "release")
        for when in ("before", "inside", "after")
    ),
)
CHANGES = ("ask", "requeue", "pin", "release")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; times in seconds.

    `pause_s` is how long the world goes on before the next one, `lasts_s` how long it lasts where
    it ends by itself, `absence_s` how long hadard hangs, `restart_s` after what time systemd would
    start hadard again, and `has_stop_post` whether it runs `hadar release` before. `pick` and
    `share` are from 0 to 1.
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
    """Deal shuffled decks for ever, so that every card comes before one comes again."""
    while True:
        yield from draw.sample(cards, len(cards))


def _fault(
    draw: random.Random, kind: Kind, points: Iterator[tuple[str, str]], changes: Iterator[str]
) -> Fault:
    # Most often back within a few seconds, sometimes not before the reaper has had to come.
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
