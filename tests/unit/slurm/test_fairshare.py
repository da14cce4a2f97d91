"""Fair-share factors are read where there are any, and are never a reason to fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from hadar_slurm.errors import SlurmRefused
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.fairshare import FairShares, parse_fair_shares
from hadar_slurm.slurm.client.runner import Runner

# In the form of `sshare -a -P -n -o Account,User,FairShare`.
SHARES = """root||
 root|root|1.000000
 physics||
  physics|ada|0.250000
  physics|grace|0.750000
 biology||
  biology|ada|0.500000
  biology|odd|inf
  biology|new|
"""


@dataclass(frozen=True, slots=True)
class Canned(Runner):
    """A runner that returns a fixed text, and counts its calls."""

    text: str | None = SHARES
    asked: list[str] = field(default_factory=list)

    def run(self, argv: object, *, stdin: str = "") -> str:
        """Return the text, or refuse if there is none."""
        self.asked.append(str(argv))
        if self.text is None:
            raise SlurmRefused("sshare: error: accounting storage is not configured")
        return self.text


def test_every_user_has_the_best_of_his_accounts() -> None:
    """Lines of accounts and invalid factors are skipped."""
    assert parse_fair_shares(SHARES) == {"root": 1.0, "ada": 0.5, "grace": 0.75}


def test_slurm_is_asked_every_five_minutes() -> None:
    """One call serves all rounds of five minutes."""
    runner = Canned()
    shares = FairShares(CommandLine(runner))
    assert shares.at(0.0)["grace"] == 0.75
    assert shares.at(299.0)["grace"] == 0.75
    assert len(runner.asked) == 1
    shares.at(301.0)
    assert len(runner.asked) == 2


def test_a_site_without_accounts_has_no_shares() -> None:
    """There is no error, no shares, and no further call for an hour."""
    runner = Canned(text=None)
    shares = FairShares(CommandLine(runner))
    assert shares.at(0.0) == {} == shares.at(3000.0)
    assert len(runner.asked) == 1
