"""How a process becomes a copy of a training: in which directory, and as the only one."""

from __future__ import annotations

import logging
import shlex

from hadar_slurm.runtime.files.identity import REMEDY, Identity, OtherTrainingError
from hadar_slurm.runtime.membership.choosing import ChosenTraining, choose, is_over
from hadar_slurm.runtime.membership.claim import ClaimedRun, Membership
from hadar_slurm.runtime.membership.lost import check_parent
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)


def join(where: Surroundings, what: Identity, settings: Settings) -> tuple[Membership, int]:
    """Become a copy of the training `what`; return its claim and the number of its directory.

    Raises HeldError where another process is that copy, LostTrainingError where the file system is
    missing.
    """
    check_parent(where)
    mine = ClaimedRun.of(where, what.command, what.number)
    while True:
        choice = (
            ChosenTraining(where.directory) if where.is_named else choose(where.directory, mine)
        )
        is_new = not choice.directory.exists()
        choice.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = Membership(
            choice.directory,
            copy=where.copy,
            mine=mine,
            gone_after_s=settings.gone_after_s,
            poll_s=settings.poll_s,
        )
        before = claim.take()
        # Another process may have ended its training while this one waited for it.
        if where.is_named or is_over(choice.directory, before) == choice.is_over:
            break
        claim.leave(before)
    claim.note()
    if choice.passed:
        message = "%s holds another training of this job: this one is in %s"
        log.warning(message, choice.passed[-1], choice.directory)
    elif is_new and where.restart > 0:
        message = "job %s is in its run %d, and there is no sign of an earlier training in %s"
        log.warning(message, where.job, where.restart, choice.directory)
    return claim, len(choice.passed) + 1


def check_run(claim: Membership) -> None:
    """Raise OtherTrainingError where the copy was last run by another command line.

    A later run of the same Slurm job may have another: its script may start it otherwise.
    """
    mine, before = claim.mine, claim.before
    if before is None or before.command == mine.command:
        return
    now, then = shlex.join(mine.command), shlex.join(before.command)
    if not mine.follows(before):
        path = claim.path.resolve()
        raise OtherTrainingError(
            f"{path.parents[1]} holds a training of another command line: `{then}`, not `{now}`. "
            f"Remedy: {REMEDY}; to go on with it by the new command line, remove {path}"
        )
    log.warning("goes on by `%s` with what was begun by `%s`", now, then)
