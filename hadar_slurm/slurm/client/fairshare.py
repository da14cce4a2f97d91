"""Slurm's fair-share factor of each association, where the site keeps accounts."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field

from hadar_slurm.slurm.client.protocol import Shares, SlurmAdapter

# Slurm itself updates the usage behind the factor every five minutes (PriorityCalcPeriod).
_KEEP_S = 300.0
# A site without accounting is asked less often.
_KEEP_NONE_S = 3600.0


@dataclass
class FairShares:
    """Caches the factors; without slurmdbd there are none, and no user is penalized."""

    slurm: SlurmAdapter
    _known: Shares = field(default_factory=dict)
    _until_s: float = -math.inf

    def at(self, now_s: float) -> Shares:
        """Return the factors, from 0 to 1; empty where Slurm has none."""
        if now_s >= self._until_s:
            self._known = self.slurm.fair_shares()
            self._until_s = now_s + (_KEEP_S if self._known else _KEEP_NONE_S)
        return self._known


def parse_fair_shares(text: str) -> dict[tuple[str, str], float]:
    """Return the factors in `sshare -P`; those outside 0 to 1 are left out.

    Associations of single partitions count as one, with the best factor.
    """
    shares: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        # Lines of accounts have no user.
        if len(columns) < 3 or not columns[1]:
            continue
        with suppress(ValueError):
            factor = float(columns[2])
            if 0.0 <= factor <= 1.0:
                association = columns[0], columns[1]
                shares[association] = max(factor, shares.get(association, 0.0))
    return shares
