"""hadard --dry-run: one round whose main commands are printed and not run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hadar_slurm.config import Config
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.daemon.world import World, adapter_of, backend_of
from hadar_slurm.engine.actions import Action, Outcome, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.breakers import Breakers
from hadar_slurm.engine.loop import Carried, RoundRecord, run_rounds
from hadar_slurm.journal import as_line
from hadar_slurm.slurm.backend import SlurmBackend


def dry_run(config: Config, world: World) -> int:
    """Print one round with the main commands that it would run; return the exit status."""
    lines: list[RoundRecord] = []
    backend = DryRun(backend_of(config, adapter_of(config, world), world))
    rounds = partial(run_rounds, length_s=config.round_seconds, clock=time.perf_counter)
    carried, policy = Carried(breakers=Breakers()), world.make_policy(config)
    rounds(backend, policy, lines.append, now_s=world.now_s, max_rounds=1, carried=carried)
    print(json.dumps(as_line(lines[0]), indent=2))
    return 1 if lines[0].errors else 0


@dataclass
class DryRun:
    """A backend that observes Slurm and reports its commands without running them."""

    real: SlurmBackend

    def observe(self) -> Snapshot:
        """Return the snapshot of Slurm."""
        return self.real.observe()

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Return the main commands of every action; none is run."""
        return [Outcome(a, Status.SKIPPED, self.real.command_text(a)) for a in actions]

    def wait(self, until_s: float) -> Wake:
        """End at once."""
        return Wake.STOP
