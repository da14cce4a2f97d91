"""What hadard does as it is stopped: it gives back to Slurm's jobs what it has changed of them.

However it was started: `hadar release` does the same for a hadard that was killed, and under
systemd once more after any end (ExecStopPost). Loaded only at the end.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from hadar_slurm.config import Config
from hadar_slurm.daemon.world import Life
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock

log = logging.getLogger("hadard")

# In seconds, beside one command: with a round's last step below TimeoutStopSec of hadard.service.
WITHIN_S = 20.0
_REST = "`hadar release` does the rest"


def give_back(
    config: Config, slurm: SlurmAdapter, life: Life, lease: Lease, limit_s: float = WITHIN_S
) -> None:
    """Restore nodes, exclusions, nice values, limits and holds of all jobs, and log the result.

    Tries for `limit_s` seconds. Raises DaemonError where another hadard has taken over.
    """

    def renew() -> None:
        with suppress(OSError):
            lease.renew()

    life.sign = renew
    end_s = time.monotonic() + limit_s
    try:
        # The reaper takes a hadard without a heartbeat for one that hangs: it waits for this lock.
        with lock(config.state_dir, RELEASE, wait_s=limit_s) as is_alone:
            if not is_alone:
                log.info("hadar release gives the jobs back")
                return
            left_s = max(0.0, end_s - time.monotonic())
            answers = release_all(slurm, Ledger(config.state_dir / FILE_NAME), limit_s=left_s)
    except (OSError, SlurmError) as error:
        log.error("jobs stay as hadard has changed them: %s; %s", error, _REST)
        return
    left = [answer for answer in answers if answer.fault]
    log.info("jobs given back to plain Slurm: %d", len(answers) - len(left))
    for answer in left:
        log.warning("job %s: %s", answer.job, answer.fault)
    if left:
        log.error("jobs not given back yet: %d; %s", len(left), _REST)
