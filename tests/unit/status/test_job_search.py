"""What hadar explain says of a job that is in no plan."""

from __future__ import annotations

import pytest
from builders import a_queue_row

from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.status.job_record import JobRecord
from hadar_slurm.status.job_search import Answer, JobSearch, SlurmRecord

HELD = encode(Description(workload="A3C", steps=9, is_held=True))


@pytest.mark.parametrize(
    ("reason", "is_held", "does", "owner"),
    [
        ("BadConstraints", True, "hadard ends its hold and leaves it to Slurm", "with less, or"),
        ("BadConstraints", False, "it is left to Slurm", "cancel it, and submit it again"),
        ("PartitionTimeLimit", False, "it is left", "JobId=7 ...` to a shorter TimeLimit"),
        ("PartitionNodeLimit", False, "it is left to Slurm", "to another NumNodes"),
        ("PartitionConfig", False, "it is left to Slurm", "with less, or to another partition"),
    ],
)
def test_what_slurm_never_starts_is_said_with_what_its_owner_can_do(
    reason: str, is_held: bool, does: str, owner: str
) -> None:
    """That its comment says that it was held once is no hold now."""
    row = a_queue_row(priority=0 if is_held else 1, reason="JobHeldUser" if is_held else reason)
    record = JobRecord("PENDING", reason, HELD, row=row)
    found = JobSearch("7", "7", [], None, None, SlurmRecord(record))
    answer, text = found.answer()
    assert answer is Answer.LEFT
    line, remedy = text, record.remedy("7")
    assert line.startswith(f"job 7: {does}")
    assert owner in remedy
    assert record.why_never


def test_a_job_that_slurm_may_start_has_no_remedy() -> None:
    """Also one that ran and was left with such a reason."""
    for record in (JobRecord("PENDING", "Priority"), JobRecord("RUNNING", "BadConstraints")):
        assert (record.why_never, record.remedy("7")) == ("", "")
