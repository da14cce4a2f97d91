"""The driver's comparison of plans is no part of hadard's round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.driver import Saboteur, Watched
from chaos.sabotage import Control

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SlurmUnavailable


def test_a_plan_stands_where_slurm_does_not_answer_the_driver(tmp_path: Path) -> None:
    """Otherwise hadard takes the failure for the policy's, and leaves out jobs."""
    control, plan = Control(tmp_path / "control"), Plan(())
    control.prepare()

    class Unanswered(Watched):
        def _seen_anew(self, snapshot: Snapshot) -> Snapshot:
            raise SlurmUnavailable("scontrol gave no answer within 4 s")

    seen: Any = SimpleNamespace(
        saboteur=Saboteur(control), ledger_mark=lambda: None, ledger_seen=None, looked_s=0.0
    )
    policy: Any = SimpleNamespace(name="fifo", plan=lambda snapshot, round_: plan)
    nothing: Any = None
    watched = Unanswered(policy, nothing, seen, nothing)
    round_ = Round(0, 0.0, 2.0)
    assert watched.plan(Snapshot(0.0, Cluster(()), ()), round_) is plan
    assert control.newest_plan()[0] > 0
    assert not list(control.notes("plans"))
