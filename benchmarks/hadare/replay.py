"""A forked training in one process: slot by slot, copy after copy, by the runtime's own code.

What copies on a cluster do at the same time is done here one after the other, so that a question of
quality needs no cluster: on a CPU the parameters are the same to the bit as those of copies in
processes of their own with the same seed, quotas and order of copies
(`tests/unit/runtime/test_replay.py`).
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from hadar_slurm.handoff import Assignment, write_assignment
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

Step = Callable[[Copy, int], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """What a slot came to: its number, steps done in all, and the time it took at given speeds."""

    number: int
    steps_done: int
    seconds: float


def replay(
    model: nn.Module,
    optimiser: Optimizer,
    step: Step,
    *,
    total_steps: int,
    quotas: Sequence[Mapping[int, int]],
    speeds: Mapping[int, float],
    seed: int = 0,
    extra: Sequence[state.Stateful] = (),
    lr: Callable[[int], float] | None = None,
    settings: Settings | None = None,
    kept: Sequence[Mapping[int, int]] | None = None,
    ahead: Sequence[Mapping[int, int]] | None = None,
) -> Iterator[Slot]:
    """Train `model` by `step` and yield after each slot, when it has the consolidated parameters.

    `quotas` are the steps of each copy by slot, repeated from the last one on; `speeds` in steps/s
    say how long that would have taken side by side. `kept` are the steps that each copy came to, by
    slot, where those were fewer, and `ahead` how many of them each had trained ahead, by delayed
    averaging. Files lie in a directory that does not stay.
    """
    with tempfile.TemporaryDirectory(prefix="hadar-replay-") as name:
        path = Path(name) / "assignment.json"
        copies = {
            number: Copy(
                model,
                optimiser,
                total_steps=total_steps,
                extra=extra,
                lr=lr,
                seed=seed,
                settings=settings,
                surroundings=Surroundings(copy=number, directory=Path(name), assignment=path),
            )
            for number in sorted(speeds)
        }
        one = next(iter(copies.values()))
        own: dict[int, state.Named] = {}  # of copies that have trained
        before: dict[int, Ahead | None] = {}
        for slot in count():
            write_assignment(path, Assignment(slot, quotas[min(slot, len(quotas) - 1)], 0.0))
            if slot == 0:
                one.member.ending.begin(total_steps, dict.fromkeys(copies, 0.0), one.member.named())
                continue
            end, file = one.member.newest()
            given = {copy: len(mine) for copy, mine in end.dealt.items()}
            given |= kept[slot - 1] if kept else {}
            for number, mine in end.dealt.items():
                if number in own:
                    tensors, facts = own[number]
                    state.load(model, optimiser, tensors, facts, extra)
                early = before.pop(number, None)
                if early and not early.belongs_to(end, mine):
                    early = None
                copies[number].learner.load(end, file, early)
                _train(copies[number], end, mine, given[number], step, early)
                if ahead and slot < len(ahead) and ahead[slot].get(number):
                    early = _train_ahead(copies[number], end, ahead[slot][number], step)
                    before[number] = early
                own[number] = state.kept(copies[number].member.named())
            took_s = max(len(mine) / speeds[number] for number, mine in end.dealt.items())
            one.member.ending.end(
                end, {copy for copy, steps in given.items() if steps}, set(copies)
            )
            after, file = one.member.newest()
            one.learner.load(after, file)
            yield Slot(after.slot, len(after.done), took_s)
            if after.is_complete:
                return


def _train(
    copy: Copy, end: SlotEnd, mine: Ranges, most: int, step: Step, early: Ahead | None
) -> None:
    """Train `most` of the steps that a copy was dealt in a slot, but for those it has `early`."""
    if not most:
        return
    for done, each in enumerate(
        copy.leading.train(end, mine, early), len(early.done) + 1 if early else 1
    ):
        step(copy, each)
        if done == most:
            copy.requests.asked.add(signal.SIGUSR1)
    copy.requests.asked.clear()
    copy.leading.contributing.save()


def _train_ahead(copy: Copy, end: SlotEnd, most: int, step: Step) -> Ahead | None:
    """Train steps ahead; what another copy trains then does not change them."""
    for done, each in enumerate(copy.leading.train_ahead(end)):
        if done == most:
            break
        step(copy, each)
    if copy.learner.ahead:
        copy.learner.ahead.stop(copy.model)
    return copy.learner.ahead
