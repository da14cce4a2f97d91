"""Whether this copy can train synchronously, and what it needs for that."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.presence import Presence
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.synchronous import links
from hadar_slurm.runtime.synchronous.fitness import Fitness
from hadar_slurm.runtime.synchronous.gradients import Gradients, is_scaled
from hadar_slurm.runtime.synchronous.grouping import Grouping
from hadar_slurm.runtime.synchronous.host import Host
from hadar_slurm.runtime.synchronous.progress import Ends
from hadar_slurm.runtime.synchronous.roster import Roster
from hadar_slurm.runtime.synchronous.training import Synchronous

log = logging.getLogger(__name__)


class Trainer(Host, Protocol):
    """The copy, with its parts."""

    where: Surroundings
    seed: int
    mode: TrainingMode
    model: nn.Module
    optimiser: Optimizer
    extra: tuple[Any, ...]
    settings: Settings
    slots: Slots
    presence: Presence
    peers: Any


def together(copy: Trainer) -> Synchronous | None:
    """Return what a copy needs to train synchronously; None where it cannot, which is logged."""
    if not links.is_available():
        log.warning("no synchronous training: this PyTorch has no gloo")
        return None
    where, settings, here = copy.where, copy.settings, copy.peers.here
    grouping = Grouping(
        host=copy,
        copy=where.copy,
        seed=copy.seed,
        model=copy.model,
        slots=copy.slots,
        presence=copy.presence,
        here=here,
        poll_s=settings.poll_s,
        roster=Roster(
            where.directory,
            copy=where.copy,
            here=here,
            gather_s=settings.gather_s,
            poll_s=settings.poll_s,
        ),
        gradients=Gradients(copy.model, copy.optimiser, is_scaled(copy.extra)),
        ends=Ends(copy),
    )
    found = Synchronous(grouping, Fitness(copy.model, copy.optimiser), copy.mode)
    if copy.mode is TrainingMode.AUTO or found.roster.open(lambda: bool(copy.asked)):
        return found
    return None
