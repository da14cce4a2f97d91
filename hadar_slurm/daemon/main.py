"""hadard: the daemon. Each round it observes Slurm, plans, applies the plan, writes the journal."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hadar_slurm.config import Config
from hadar_slurm.daemon.options import configuration, option_parser
from hadar_slurm.daemon.rounds import run_with
from hadar_slurm.daemon.signals import Requests, signal_requests
from hadar_slurm.daemon.signs_of_life import good_for_s
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.daemon.world import World, adapter_of, backend_of, make_directory, modes
from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.state.heartbeat import remove_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock, only_daemon
from hadar_slurm.state.spool import make_spool

log = logging.getLogger("hadard")

_POLL_S = 0.1
# Allocations before Python's garbage collector runs. A snapshot of thousands of jobs allocates many
# objects at once, none of them garbage: at the default of 700, collection took a sixth of its time.
COLLECT_AFTER = 50_000


def main(words: Sequence[str] | None = None, world: World | None = None) -> int:
    """Run the daemon until a signal ends it; return the exit status."""
    world = world or World()
    options = option_parser().parse_args(words)
    gc.set_threshold(COLLECT_AFTER)
    from hadar_slurm.daemon.log_lines import log_to_stderr

    log_to_stderr(options.log_level)
    try:
        if options.dry_run:
            from hadar_slurm.daemon.dry_run import dry_run

            return dry_run(configuration(options), world)
        return _run(options, world)
    except HadarError as error:
        print(f"hadard: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _run(options: argparse.Namespace, world: World) -> int:
    """Run rounds until SIGTERM or SIGINT; reload the configuration on SIGHUP."""
    config = configuration(options)
    slurm = adapter_of(config, world)
    backend_of(config, slurm, world)  # reports errors in its files before anything else
    cluster = slurm.site()
    changes = modes(config).all[0].changes
    if changes:
        make_directory(config.state_dir, "state_dir")
    with (
        only_daemon(cluster.name, cluster.address, config.state_dir, is_required=changes),
        signal_requests() as requests,
        _leased(config, cluster, requests) as lease,
    ):
        with suppress(OSError):
            # The heartbeat of a daemon that died would make this one look hung.
            remove_heartbeat(config.run_dir)
        _wait_for_release(config.state_dir, requests)
        signed_in = config.run_dir
        faults: tuple[str, ...] = ()
        try:
            while not requests.to_end:
                faults = run_with(config, slurm, world, lease, cluster, requests, once=options.once)
                if not requests.to_reload or requests.to_end:
                    break
                requests.to_reload = False
                from hadar_slurm.daemon.reloading import reloaded

                config, slurm = reloaded(options, world, config, slurm)
                if config.run_dir != signed_in:
                    remove_heartbeat(signed_in)
                    signed_in = config.run_dir
        finally:
            with suppress(OSError):
                remove_heartbeat(signed_in)
        notify("STOPPING=1")
        if requests.to_end and modes(config).all[0].changes:
            from hadar_slurm.daemon.ending import give_back

            give_back(config, slurm, world.life, lease)
        return 1 if options.once and faults else 0


@contextmanager
def _leased(config: Config, cluster: Site, requests: Requests) -> Iterator[Lease]:
    """Hold the cluster's lease; raises DaemonError where another hadard holds it.

    hadard also runs with a spool_dir that it cannot write to: each round reports that problem.
    """
    lease = Lease(config.spool_dir, cluster.name, good_for_s(config))
    places = config.spool_dir, config.reports, config.assignments
    make_spool(*places, hides_jobs=cluster.hides_jobs)
    try:
        lease.take(lambda: requests.to_end)
    except OSError as error:
        log.error("there is no lease in %s: %s", config.spool_dir, error.strerror)
    try:
        yield lease
    finally:
        lease.give_up()


def _wait_for_release(state_dir: Path, requests: Requests) -> None:
    """Wait while `hadar release` runs: both write the ledger."""
    is_logged = False
    # A hadard that only observes may have no state_dir.
    with suppress(OSError):
        while not requests.to_end:
            with lock(state_dir, RELEASE) as is_over:
                if is_over:
                    return
            if not is_logged:
                log.info("waiting for hadar release to end")
                is_logged = True
            time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
