"""Slurm's fair-share factor of every user, where the site keeps accounts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.slurm.client.protocol import SlurmAdapter

# The factor follows usage, which Slurm itself sums up every five minutes (PriorityCalcPeriod).
_KEEP_S = 300.0
# A site without accounting will not have it in five minutes either.
_KEEP_NONE_S = 3600.0


@dataclass
class FairShares:
    """Asks Slurm now and then; without slurmdbd there are no shares, and nobody is told off."""

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
    """Return the factor by user from `sshare -P`; of a user's several accounts the best one.

    Lines of accounts have no user; anything that is no number from 0 to 1 is left out.
    """
    shares: dict[str, float] = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) < 3 or not columns[1]:
            continue
        try:
            factor = float(columns[2])
        except ValueError:
            continue
        if 0.0 <= factor <= 1.0:
            shares[columns[1]] = max(factor, shares.get(columns[1], 0.0))
    return shares
