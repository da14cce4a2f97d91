"""Reading hadard's configuration again, at SIGHUP; loaded only then."""

from __future__ import annotations

import argparse
import logging
from contextlib import closing, suppress

from hadar_slurm.config import Config
from hadar_slurm.daemon.options import configuration
from hadar_slurm.daemon.world import World, adapter_of, backend_of
from hadar_slurm.errors import ConfigError, HadarError, SlurmError
from hadar_slurm.journal import Journal
from hadar_slurm.slurm.client.protocol import SlurmAdapter

log = logging.getLogger("hadard")


def reloaded(
    options: argparse.Namespace, world: World, config: Config, slurm: SlurmAdapter
) -> tuple[Config, SlurmAdapter]:
    """Return the configuration read again and its adapter; the old ones where it has an error."""
    try:
        fresh = configuration(options)
        world.make_policy(fresh)
        backend_of(fresh, slurm, world)
        with closing(Journal(fresh.journal)) as journal:
            try:
                journal.open()
            except OSError as error:
                raise ConfigError(f"journal: {fresh.journal}: {error.strerror}") from error
        fresh_slurm = adapter_of(fresh, world)
        with suppress(SlurmError):
            fresh_slurm.site()  # with the limit of RPCs
    except HadarError as error:
        log.error("the configuration stays as it was: %s", error)
        return config, slurm
    log.info("the configuration was read again")
    return fresh, fresh_slurm
