"""The processes that train one copy together: those that torchrun has started on its node.

Rank 0 leads: it alone has files, reports and signs of life, and before each step it broadcasts the
number of the step, in a few bytes. So all stop at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import distributed

# Ranks follow while the leader waits for other copies; gloo reports its death at once.
_TIMEOUT = timedelta(days=30)


class Word(IntEnum):
    """What the leader broadcasts."""

    LOAD = 0  # the end of a slot, by its number, and whether to add what was trained ahead
    STEP = 1  # train a step, by its number and how many steps of the whole job come before it
    DONE = 2
    LEAVE = 3  # with this exit status
    AHEAD = 4  # train on while the slot of this number is averaged
    DIRECTORY = 5  # the files are in the job's directory of this number


@dataclass
class Ranks:
    """This process among the `count` of its copy; a single one broadcasts nothing."""

    rank: int = 0
    count: int = 1
    _group: Any = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that decides."""
        return self.rank == 0

    def join(self) -> None:
        """Form a group of all processes; raises RuntimeError without torch's process group."""
        if self.count == 1:
            return
        if not distributed.is_initialized():
            raise RuntimeError(
                f"there are {self.count} processes: call torch.distributed.init_process_group "
                "before the copy is entered"
            )
        # A separate group, on the CPU: its messages do not mix with those of training.
        self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)

    def leave(self) -> None:
        """Leave the process group."""
        if self._group is not None:
            distributed.destroy_process_group(self._group)
            self._group = None

    def tell(self, word: Word, number: int = 0, other: int = 0) -> None:
        """Broadcast a word to the ranks that follow."""
        if self._group is not None:
            distributed.broadcast(torch.tensor([word, number, other]), 0, self._group)

    def hear(self) -> tuple[Word, int, int]:
        """Return the leader's next broadcast."""
        said = torch.zeros(3, dtype=torch.int64)
        distributed.broadcast(said, 0, self._group)
        word, number, other = (int(each) for each in said)
        return Word(word), number, other

    def all_have(self, this: bool) -> bool:
        """Return whether `this` is true in every process; all have to call it."""
        if self._group is None:
            return this
        found = torch.tensor([int(this)])
        distributed.all_reduce(found, distributed.ReduceOp.MIN, self._group)
        return bool(found)
