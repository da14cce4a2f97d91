"""How a process becomes a copy of a training: in which directory, and as the only one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from hadar_slurm.runtime.averaging.identity import Identity, check_command, next_number, text
from hadar_slurm.runtime.membership.choosing import Choice, choose, is_over
from hadar_slurm.runtime.membership.claim import Claim, ClaimedRun, run_path
from hadar_slurm.runtime.membership.lost import check_parent
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joined:
    """A copy that may train: where, and by what right. `number` is that of its directory."""

    where: Surroundings
    claim: Claim
    number: int = 1


def identity_of(where: Surroundings, total_steps: int, seed: int) -> Identity:
    """Return the identity of the training that begins now."""
    number = next_number(where.directory) if where.is_from_environment else 1
    return Identity(total_steps, seed, number, where.command)


def join(where: Surroundings, what: Identity, settings: Settings) -> Joined:
    """Become a copy of the training `what`.

    Raises HeldError where another process is that copy, LostTrainingError where the file system is
    missing.
    """
    check_parent(where)
    mine = ClaimedRun.of(where, what.command, what.number)
    while True:
        choice = Choice(where.directory) if where.is_named else choose(where.directory, mine)
        is_new = not choice.directory.exists()
        choice.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = Claim(choice.directory, where.copy, mine, settings.gone_after_s, settings.poll_s)
        before = claim.take()
        # Another process may have ended its training while we waited for it.
        if where.is_named or is_over(choice.directory, before) == choice.is_over:
            break
        claim.leave(before)
    claim.note()
    if choice.passed:
        log.warning(
            "%s holds another training of this job: this one is in %s",
            choice.passed[-1],
            choice.directory,
        )
    elif is_new and where.restart > 0:
        log.warning(
            "job %s is in its run %d, and there is no sign of an earlier training in %s",
            where.job,
            where.restart,
            choice.directory,
        )
    number = len(choice.passed) + 1
    return Joined(replace(where, directory=choice.directory), claim, number)


def check_run(claim: Claim) -> None:
    """Raise OtherTrainingError where the copy was last run by another command line.

    Not so for a later run of the same Slurm job: its script may start it otherwise than the first.
    """
    before = claim.before
    if before is None or before.command == claim.mine.command:
        return
    path = run_path(claim.directory, claim.copy)
    if not claim.mine.follows(before):
        check_command(path, claim.mine.command, before.command)
    log.warning(
        "goes on by `%s` with what was begun by `%s`",
        text(claim.mine.command),
        text(before.command),
    )
