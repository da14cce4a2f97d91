"""Slurm's fair-share factor of each user, where the site keeps accounts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hadar_slurm.slurm.client.protocol import SlurmAdapter

# Slurm itself updates the usage behind the factor every five minutes (PriorityCalcPeriod).
_KEEP_S = 300.0
# A site without accounting is asked less often.
_KEEP_NONE_S = 3600.0


@dataclass
class FairShares:
    """Caches the factors; without slurmdbd there are none, and no user is penalized."""

    slurm: SlurmAdapter
    _known: Mapping[str, float] = field(default_factory=dict)
    _until_s: float = -math.inf

    def at(self, now_s: float) -> Mapping[str, float]:
        """Return the factor by user, from 0 to 1; empty where Slurm has none."""
        if now_s >= self._until_s:
            self._known = self.slurm.fair_shares()
            self._until_s = now_s + (_KEEP_S if self._known else _KEEP_NONE_S)
        return self._known


def parse_fair_shares(text: str) -> dict[str, float]:
    """Return the best factor of each user in `sshare -P`; those outside 0 to 1 are left out."""
    shares: dict[str, float] = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        # Lines of accounts have no user.
        if len(columns) < 3 or not columns[1]:
            continue
        with suppress(ValueError):
            factor = float(columns[2])
            if 0.0 <= factor <= 1.0:
                shares[columns[1]] = max(factor, shares.get(columns[1], 0.0))
    return shares
