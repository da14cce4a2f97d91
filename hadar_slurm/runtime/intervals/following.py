"""How the processes of a copy train whose first process leads."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.files.tensors import TensorFileError
from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.intervals.requests import CopySignals
from hadar_slurm.runtime.membership.ranks import Word

log = logging.getLogger(__name__)


def follow(member: Member, requests: CopySignals) -> Iterator[int]:
    """Yield the steps that the leader broadcasts; load what it loads."""
    learner, ranks = member.learner, member.ranks
    while True:
        word, number, other = ranks.hear()
        if word is Word.STEP:
            requests.say_stop()
            learner.set_rates(other)
            yield number
        elif word is Word.LOAD:
            if ranks.all_have(_try_load(member, number, learner.ahead if other else None)):
                learner.ahead = None
        elif word is Word.AHEAD:
            learner.go_ahead(number)
        elif word is Word.LEAVE:
            raise SystemExit(number)
        else:
            return


def _try_load(member: Member, slot: int, ahead: Ahead | None) -> bool:
    try:
        member.learner.load(*member.slots.read(slot), ahead)
    except (TensorFileError, OSError) as error:
        log.warning("rank %d: tries again: %s", member.where.rank, error)
        return False
    return True
