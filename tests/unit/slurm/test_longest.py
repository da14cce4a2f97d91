"""hadard gives no job a longer time limit than Slurm would let its owner have."""

from __future__ import annotations

import pytest
from builders import a_queue_row

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import SlurmRefused
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.longest import longest_limits
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.runner import Runner

HOUR_S = 3600.0
PARTITIONS = (
    "PartitionName=main AllowQos=ALL Default=YES QoS=N/A Hidden=NO MaxTime=7-00:00:00 MinNodes=0\n"
    "PartitionName=debug AllowQos=ALL Default=NO QoS=quick Hidden=NO MaxTime=UNLIMITED MinNodes=0\n"
)
QOS = "normal|\nshort|02:00:00\nquick|00:30:00\n"
ASSOCIATIONS = "alice|physics|1-00:00:00\nalice|physics|05:00:00\nalice|bio|\n"


class Answers(Runner):
    """Answers as Slurm's commands do."""

    has_accounting = True

    def run(self, argv: list[str], **given: object) -> str:  # type: ignore[override]
        """Return the output of one command."""
        if argv[0] == "scontrol":
            return PARTITIONS
        if not self.has_accounting:
            raise SlurmRefused("sacctmgr: no connection to slurmdbd")
        return QOS if "qos" in argv else ASSOCIATIONS


class WithoutAnswers(Answers):
    """A slurmdbd that does not answer."""

    has_accounting = False


def a_job(**given: object) -> QueueRow:
    """Return a pending job whose time limit is that on a V100."""
    described = Description(limit_s=60.0, throughputs={"v100": 1.0}, time_on="v100")
    values = {"user": "alice", "partition": "main", "comment": encode(described)}
    return a_queue_row(key=JobId("1"), **{**values, **given})


@pytest.mark.parametrize(
    ("given", "hours"),
    [
        ({}, 168.0),
        ({"qos": "normal", "account": "bio"}, 168.0),
        ({"qos": "short", "account": "bio"}, 2.0),
        # The shortest of its associations: one may be of a single partition.
        ({"qos": "normal", "account": "physics"}, 5.0),
        # The QOS of a partition counts as well.
        ({"qos": "normal", "account": "bio", "partition": "main,debug"}, 0.5),
        ({"partition": "unheard-of"}, 0.0),
    ],
)
def test_the_shortest_of_all_limits_counts(given: dict[str, object], hours: float) -> None:
    """Of partitions and their QOS, the job's QOS and its user's association."""
    assert longest_limits([a_job(**given)], Answers()) == {"1": hours * HOUR_S}


def test_without_an_answer_a_job_keeps_its_own_limit() -> None:
    """Where there is accounting; without any, partitions alone count."""
    assert longest_limits([a_job(qos="normal")], WithoutAnswers()) == {"1": 0.0}
    assert longest_limits([a_job()], WithoutAnswers()) == {"1": 168 * HOUR_S}
    assert longest_limits([a_job(comment="")], WithoutAnswers()) == {}
