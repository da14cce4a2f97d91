"""The bucket of RPCs that slurmctld 24.11.5 has for each user under `rl_enable`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fakes.fake_slurm import FakeSlurm

# What a command costs (sdiag): `show job` of one job asks for the federation too, and all else that
# is shown for the nodes or partitions.
_FREE = ("--version", "hostnames")


@dataclass
class Bucket:
    """Delays each command of hadard's account as scontrol does: it tries again after a second."""

    slurm: FakeSlurm
    per_s: float
    left: float = 0.0
    spent: int = 0
    _filled_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._filled_s = self.slurm.now_s
        self.slurm.parameters = f"rl_enable,rl_refill_rate={self.per_s:g}"

    def __call__(self, argv: Sequence[str]) -> None:
        """Take the RPCs of a command from the bucket, and wait for them."""
        for _ in range(rpcs(argv)):
            self._fill()
            while self.left < 1:
                self.slurm.advance(1.0)
                self._fill()
            self.left -= 1
            self.spent += 1

    def _fill(self) -> None:
        now_s = self.slurm.now_s
        self.left = min(30.0, self.left + self.per_s * (now_s - self._filled_s))
        self._filled_s = now_s


def rpcs(argv: Sequence[str]) -> int:
    """Return how many RPCs a command sends."""
    if any(word in _FREE for word in argv[1:3]):
        return 0
    if argv[1] == "update":
        # scontrol loads the job before it.
        return 3 if any(word.startswith(("NumNodes=", "ReqNodeList=")) for word in argv) else 1
    return 2 if argv[0] == "squeue" or {"job", "node"} & {*argv} else 1
