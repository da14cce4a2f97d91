"""Fair-share factors are read where there are any, and are never a reason to fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fakes.fake_slurm import Asked, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import SlurmRefused
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.fairshare import FairShares, parse_fair_shares
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings

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


def test_every_association_has_its_factor() -> None:
    """A user of two accounts has two; lines of accounts and invalid factors are skipped."""
    assert parse_fair_shares(SHARES) == {
        ("root", "root"): 1.0,
        ("physics", "ada"): 0.25,
        ("physics", "grace"): 0.75,
        ("biology", "ada"): 0.5,
    }


def test_slurm_is_asked_every_five_minutes() -> None:
    """One call serves all rounds of five minutes."""
    runner = Canned()
    shares = FairShares(CommandLine(runner))
    assert shares.at(0.0)["physics", "grace"] == 0.75
    assert shares.at(299.0)["physics", "grace"] == 0.75
    assert len(runner.asked) == 1
    shares.at(301.0)
    assert len(runner.asked) == 2


def test_a_site_without_accounts_has_no_shares() -> None:
    """There is no error, no shares, and no further call for an hour."""
    runner = Canned(text=None)
    shares = FairShares(CommandLine(runner))
    assert shares.at(0.0) == {} == shares.at(3000.0)
    assert len(runner.asked) == 1


def test_a_job_has_the_share_of_its_own_account(tmp_path: Path) -> None:
    """Not the user's best: one of its accounts may have used up its share."""
    slurm = FakeSlurm("v100:4")
    described = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, is_held=True)
    for account in ("physics", "biology", "unknown"):
        slurm.submit(
            Asked(per_job=(("", 2),)), comment=encode(described), hold="user", account=account
        )
    [user] = {job.user for job in slurm.jobs}
    slurm.shares = {("physics", user): 0.25, ("biology", user): 0.5}
    backend = SlurmBackend(
        CommandLine(FakeRunner(slurm=slurm)),
        ThroughputTable("none", {}),
        BackendSettings(spool=tmp_path / "spool"),
        Ledger(tmp_path / FILE_NAME),
        now_s=lambda: slurm.now_s,
    )
    assert [job.fair_share for job in backend.observe().jobs] == [0.25, 0.5, None]
