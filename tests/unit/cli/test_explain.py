"""hadar explain: text, JSON, and the exit status for unknown jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_job, a_plan, a_snapshot
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.core.claims import Credit
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import UsageError
from hadar_slurm.journal import Journal, claim_facts
from hadar_slurm.status.words import span


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of one round: job 1 runs, job 2 waits for the only V100."""
    runs = a_job("1", on="n1:V100:1")
    waits = a_job("2", submitted_s=5.0)
    snapshot = a_snapshot("1xV100", runs, waits, now_s=1e9)
    plan = a_plan({"1": "n1:V100:1"}, {"2": WaitReason.INSUFFICIENT})
    path = tmp_path / "j.jsonl"
    written = Journal(path)
    written.write(RoundRecord(Round(0, 1e9, 360.0), "start", "hadar", snapshot, plan))
    written.close()
    return path


def explain(*words: str) -> Result:
    return CliRunner().invoke(commands, ["explain", *words])


def test_a_job_that_waits_is_explained(journal: Path) -> None:
    done = explain("2", "--journal", str(journal))
    assert done.exit_code == 0, done.output
    assert "Hadar: no free GPUs fit its gang now" in done.output
    assert "it starts in 100 s on 1 V100 of n1 and ends in 200 s" not in done.output
    assert "starts in 100 s on 1 V100 of n1 and ends in 3 min" in done.output
    assert "Slurm:" not in done.output
    tree = json.loads(explain("2", "--journal", str(journal), "--json").output)
    assert tree["found"]["expected"]["begins_in_s"] == 100.0
    assert tree["slurm"] is None


def test_a_job_that_runs_is_explained(journal: Path) -> None:
    done = explain("1", "--journal", str(journal))
    assert "it ends in 100 s unless migrated" in done.output


def test_a_claim_that_is_not_planned_with_is_named(tmp_path: Path) -> None:
    """With the steps of both, and why its user is believed less and until when; else nothing."""
    job = a_job("1", steps=4000)
    odd = replace(job, spec=replace(job.spec, user="eve", claimed_steps=1000))
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    snapshot = a_snapshot("1xV100", odd, a_job("2"), now_s=1e9)
    plan = a_plan({"1": "n1:V100:1"})
    record = RoundRecord(Round(0, 1e9, 360.0), "round end", "hadar", snapshot, plan)
    credit = Credit().after(1000.0, 4000.0, 1e9)
    journal.write(record, more=claim_facts([], {"eve": credit}))
    journal.close()
    text = explain("1", "--journal", str(path)).output
    assert "1,000 steps claimed, planned with 4,000" in text
    assert "eve: steps claimed count 4 times after 1 job, until 2001-11-2" in text
    tree = json.loads(explain("1", "--journal", str(path), "--json").output)["found"]
    assert (tree["claimed_steps"], tree["believed_less"]["jobs"]) == (1000, 1)
    assert "claimed" not in explain("2", "--journal", str(path)).output


def test_a_job_that_is_not_there_has_another_status(journal: Path) -> None:
    done = explain("3", "--journal", str(journal))
    assert done.exit_code == 1
    assert "job 3 is unknown to the journal" in done.output
    tree = json.loads(explain("3", "--journal", str(journal), "--json").output)
    assert tree["found"] is None


def test_arrays_are_asked_for_by_task_and_forked_jobs_by_either(tmp_path: Path) -> None:
    """Task 7_1 is a job of its own; 8_1 is a copy of job 8."""
    jobs = [a_job("7_0"), a_job("7_1"), a_job("8", on="n1:V100:1")]
    path = tmp_path / "j.jsonl"
    written = Journal(path)
    snapshot = a_snapshot("1xV100", *jobs, now_s=1e9)
    written.write(RoundRecord(Round(0, 1e9, 360.0), "start", "hadar", snapshot))
    written.close()
    done = explain("7", "--journal", str(path))
    assert (done.exit_code, done.output) == (
        1,
        "job 7 is an array of 2 jobs: give one of 7_0, 7_1 ...\n",
    )
    assert "job 8: running" in explain("8_1", "--journal", str(path)).output
    assert "job 7_1: queued" in explain("7_1", "--journal", str(path)).output


def test_a_journal_that_is_not_there_or_not_readable_is_a_fault(tmp_path: Path) -> None:
    fault = explain("1", "--journal", str(tmp_path / "none")).exception
    assert isinstance(fault, UsageError)
    assert "no round has been written yet" in str(fault)
    fault = explain("1", "--journal", str(tmp_path)).exception
    assert isinstance(fault, UsageError)
    assert f"{tmp_path}: Is a directory" in str(fault)


def test_a_round_that_saw_nothing_has_no_answer(tmp_path: Path) -> None:
    written = Journal(tmp_path / "j.jsonl")
    written.write(RoundRecord(Round(0, 1e9, 360.0), "start", "hadar", errors=("no squeue",)))
    written.close()
    assert explain("1", "--journal", str(tmp_path / "j.jsonl")).exit_code == 1


def test_slurms_own_word_is_told_where_it_can_be_asked(journal: Path, tmp_path: Path) -> None:
    """Without --journal Slurm is queried, and the failure of the query is printed."""
    config = tmp_path / "hadar.yaml"
    config.write_text(
        f"journal: {journal}\nslurm_conf: {tmp_path}/no-slurm.conf\ncommand_timeout_seconds: 1\n"
    )
    done = explain("2", "--config", str(config))
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Slurm: unknown: ")


@pytest.mark.parametrize(
    ("time_s", "words"),
    [(0.2, "0 s"), (119, "119 s"), (121, "2 min"), (7201, "2.0 h"), (400_000, "4.6 days")],
)
def test_times_are_for_people(time_s: float, words: str) -> None:
    assert span(time_s) == words
