"""status, top and explain when hadard is dead, its journal is old, or a job has ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_bin import on_path
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner
from typer.testing import CliRunner, Result
from web_journals import Tree, a_blind_line, a_job, a_line, gang, write

from hadar_slurm.cli.main import commands
from hadar_slurm.core.job import Shape
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat

ROUND_S = 360.0
RATES = {"v100": 1.0, "V100": 1.0}
WAITS = "no free GPUs fit its gang now"
# Prints a site's banner, and rows as sacct 22.05.8 does with `-n -P -X -o State,ExitCode,End` and
# times as seconds.
SACCT = """#!/bin/sh
echo "Welcome to X | 4 nodes are free"
for word; do case $last in -j) job=$word;; esac; last=$word; done
grep "^$job|" {table} | cut -d'|' -f2-
"""


class Place:
    """A directory with a configuration, a journal, and a fake Slurm with its commands on PATH."""

    def __init__(self, directory: Path, slurm: FakeSlurm) -> None:
        self.directory, self.slurm = directory, slurm
        self.journal = directory / "j.jsonl"
        self.config = directory / "hadar.yaml"
        self.config.write_text(
            f"run_dir: {directory}\njournal: {self.journal}\ndisable_file: {directory}/off\n"
            "policy: hadar\n"
        )

    def vouch(self, seconds: float = 30.0, **problems: str) -> None:
        """Write a heartbeat that expires in some seconds."""
        beat = Heartbeat(7, "toy", time.time() + seconds, str(self.directory), problems=problems)
        write_heartbeat(self.directory, beat)

    def round(self, ago_s: float, number: int, jobs: dict[str, Tree], **more: Any) -> None:
        """Write a round that began some seconds ago."""
        write(self.journal, a_line(number, jobs, time_s=time.time() - ago_s, **more))

    def hadar(self, *words: str) -> Result:
        """Run a command."""
        return CliRunner().invoke(
            commands, [*words, "--config", str(self.config)], env={"COLUMNS": "160"}
        )

    def tree(self, *words: str) -> Any:
        """Return the JSON output of a command."""
        return json.loads(self.hadar(*words, "--json").output)

    def submit(self, *, described: bool = True, work_s: float = 1e6) -> FakeJob:
        """Submit a job to Slurm."""
        comment = (
            encode(Description(steps=10, gpus=1, throughputs={"v100": 1.0})) if described else ""
        )
        return self.slurm.submit(
            Asked(per_job=(("", 1),)), comment=comment, work_s=work_s, steps=10
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    slurm = FakeSlurm("v100:4", spool=tmp_path / "spool")
    table = tmp_path / "sacct.txt"
    table.touch()
    with on_path(FakeRunner(slurm=slurm), tmp_path / "bin") as path:
        (tmp_path / "bin" / "sacct").write_text(SACCT.format(table=table))
        (tmp_path / "bin" / "sacct").chmod(0o755)
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("HADAR_RUN_DIR", raising=False)
        yield Place(tmp_path, slurm)


def waiting(job: str) -> dict[str, Any]:
    """Return a round in which a job waits for the GPUs that job 900 holds."""
    jobs = {
        "900": a_job("n1:V100:2", gpus=2, rates={"V100": 1.0}, stays=True),
        job: a_job(gpus=2, rates={"V100": 1.0}),
    }
    return {"jobs": jobs, "waiting": {job: WAITS}, "nodes": "n1:V100:2"}


# The age of the last round, and whether hadard is alive.


def test_the_age_of_the_last_round_is_told(place: Place) -> None:
    job = place.submit()
    place.vouch()
    place.round(100.0, 812, **waiting(job.key))
    for command in (["status"], ["top", "--once"], ["explain", job.key]):
        said = place.hadar(*command).output
        assert "round 812, 10" in said, said
        assert " s ago, at 20" in said
        assert "is not alive" not in said
        assert " old" not in said
    for words in (["status"], ["explain", job.key]):
        tree = place.tree(*words)
        assert 100 <= tree["age_s"] < 160
        assert (tree["hadard_alive"], tree["is_stale"]) == (True, False)


def test_a_stale_round_of_a_live_hadard_is_told(place: Place) -> None:
    """A last round older than three rounds and a minute gives a warning if hadard is alive."""
    job = place.submit()
    place.vouch()
    place.round(3 * ROUND_S + 50.0, 812, **waiting(job.key))
    assert place.tree("status")["is_stale"] is False
    place.journal.unlink()
    place.round(3 * 3600.0, 812, **waiting(job.key))
    for command in (["status"], ["top", "--once"], ["explain", job.key]):
        said = place.hadar(*command).output
        assert "hadard is alive, but the following is from its last round, 3.0 h ago" in said, said
        assert "round 812, 3.0 h ago, at 20" in said
    assert place.tree("explain", job.key)["is_stale"] is True


@pytest.mark.parametrize("beat_s", [None, -5.0])
def test_a_hadard_that_is_gone_is_told_and_forecasts_nothing(
    place: Place, beat_s: float | None
) -> None:
    job = place.submit()
    place.vouch()
    place.round(3 * 3600.0, 812, **waiting(job.key))
    assert place.tree("explain", job.key)["found"]["expected"] is not None
    (place.directory / "heartbeat.json").unlink()
    if beat_s is not None:
        place.vouch(beat_s)
    for command in (["status"], ["top", "--once"], ["explain", job.key]):
        said = place.hadar(*command).output
        assert f"hadard is not alive: no fresh heartbeat in {place.directory}" in said, said
        assert "the following is from 3.0 h ago" in said
    done = place.hadar("explain", job.key)
    assert done.exit_code == 0
    assert "it starts in" not in done.output
    assert "no forecast of its start" in done.output
    tree = place.tree("explain", job.key)
    assert tree["hadard_alive"] is False
    assert (tree["found"]["expected"], tree["found"]["ahead"]) == (None, [])
    assert tree["found"]["reason"] == WAITS
    assert place.tree("status")["hadard_alive"] is False


def test_forecasts_count_from_now(place: Place) -> None:
    """A start forecast for 750 s after a round is shown from now, 550 s if 200 s have passed."""
    job = place.submit()
    place.vouch()
    place.round(200.0, 1, **waiting(job.key))
    assert place.tree("explain", job.key)["found"]["expected"]["begins_in_s"] == 750.0
    assert "it starts in 9 min on" in place.hadar("explain", job.key).output
    running = place.hadar("explain", "900").output
    assert "unknown" in running or "ended" in running


def test_a_job_that_should_have_ended_is_not_promised_to_end(place: Place) -> None:
    job = place.submit()
    place.slurm.advance(3.0)
    place.round(3600.0, 1, {job.key: a_job("n1:V100:1", rates={"V100": 1.0})})
    said = place.hadar("explain", job.key).output
    assert re.search("it should have ended 4[78] min ago unless migrated", said), said


# A job that has ended.


def test_slurms_word_is_above_an_old_round(place: Place) -> None:
    """Slurm's record that the job has ended overrides an older round in which it runs."""
    job = place.submit(work_s=60.0)
    place.round(3600.0, 5, {job.key: a_job("n1:V100:1", rates={"V100": 1.0})})
    place.slurm.advance(100.0)
    done = place.hadar("explain", job.key)
    assert done.exit_code == 0, done.output
    assert f"job {job.key} has ended: done (COMPLETED) at " in done.output
    assert "running" not in done.output
    tree = place.tree("explain", job.key)
    assert (tree["answer"], tree["found"]) == ("ended", None)
    assert (tree["ended"]["phase"], tree["ended"]["known_from"]) == ("done", "slurm")
    assert tree["slurm"].startswith("COMPLETED")


def test_a_job_that_slurm_has_forgotten_does_not_read_as_running(place: Place) -> None:
    """A job in the last round that neither slurmctld nor the accounting has is shown as ended."""
    place.round(3600.0, 5, {"77": a_job("n1:V100:1", rates={"V100": 1.0})})
    done = place.hadar("explain", "77")
    assert done.exit_code == 0, done.output
    assert "Slurm: no such job" in done.output
    assert (
        "job 77 has ended, or was removed from Hadar's management, after round 5 at " in done.output
    )
    assert "running" not in done.output


@pytest.mark.parametrize(
    ("row", "phase", "words"),
    [
        ("FAILED|1:0|1790000000", "failed", "failed (FAILED, exit code 1:0) at 2026-09-21"),
        ("CANCELLED by 1000|0:15|1790000000", "cancelled", "cancelled (CANCELLED, exit code 0:15)"),
        ("COMPLETED|0:0|1790000000", "done", "done (COMPLETED, exit code 0:0) at 2026-09-21"),
        ("TIMEOUT|0:0|1790000000", "failed", "failed (TIMEOUT"),
    ],
)
def test_what_only_the_accounting_knows_is_told(
    place: Place, row: str, phase: str, words: str
) -> None:
    place.round(10.0, 5, {"1": a_job()})
    (place.directory / "sacct.txt").write_text(f"77|{row}\n78|COMPLETED|0:0|1\n")
    done = place.hadar("explain", "77")
    assert done.exit_code == 0, done.output
    assert f"job 77 has ended: {words}" in done.output
    tree = place.tree("explain", "77")["ended"]
    assert (tree["phase"], tree["known_from"]) == (phase, "accounting")
    assert tree["ended_s"] == 1790000000


def test_the_journal_tells_of_an_end_in_any_of_its_files(place: Place) -> None:
    """A job's end is found in the last round, in an older one, and in a rotated file."""
    ended = {"77": {"phase": "cancelled", "end_s": 1790000000.0}}
    place.round(900.0, 1, {"77": a_job("n1:V100:1")})
    place.round(800.0, 2, {}, ended=ended)
    for _ in range(2):
        done = place.hadar("explain", "77")
        assert done.exit_code == 0, done.output
        assert "job 77 has ended: cancelled at 2026-09-21" in done.output
        place.round(100.0, 3, {"1": a_job()})
    place.journal.rename(f"{place.journal}.1")
    place.round(10.0, 4, {"1": a_job()})
    done = place.hadar("explain", "77")
    assert "job 77 has ended: cancelled at 2026-09-21" in done.output
    assert place.tree("explain", "77")["ended"]["known_from"] == "journal"


def test_an_older_line_of_the_last_rounds_does_not_count_as_now(place: Place) -> None:
    """Of a mode's last rounds only the newest counts, in which the job has ended."""
    jobs = {"77": a_job("n1:V100:1", rates={"V100": 1.0})}
    place.round(700.0, 1, jobs)
    place.round(400.0, 2, jobs)
    place.round(40.0, 3, {}, ended={"77": {"phase": "done", "end_s": time.time() - 50.0}})
    words = ["explain", "77", "--journal", str(place.journal)]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    assert "job 77 has ended: done at " in done.output


def test_a_long_journal_is_searched(place: Place) -> None:
    """A job's end is found before lines longer than a block and a last line that is cut off."""
    ended = {"77": {"phase": "failed", "end_s": 1790000000.0}}
    wide = {"errors": ["x" * 3_000_000]}
    place.round(5000.0, 0, {"77": a_job("n1:V100:1")})
    place.round(4000.0, 1, {}, ended=ended)
    for number in range(2, 40):
        place.round(4000.0 - number, number, {"1": a_job()})
    write(place.journal, a_line(40, {"1": a_job()}, time_s=time.time() - 9.0) | wide)
    place.round(5.0, 41, {"1": a_job()})
    with place.journal.open("a") as file:
        file.write('{"version":1,"jobs":{"77":{"phase"')
    done = place.hadar("explain", "77")
    assert "job 77 has ended: failed at " in done.output, done.output


def test_an_ended_job_needs_no_journal(place: Place) -> None:
    """The end that Slurm records is shown if the journal is missing or cannot be read."""
    job = place.submit(work_s=60.0)
    place.slurm.advance(100.0)
    for _ in range(2):
        done = place.hadar("explain", job.key)
        assert done.exit_code == 0, done.output
        assert f"job {job.key} has ended: done" in done.output
        place.journal.mkdir(exist_ok=True)
    assert "Is a directory" in str(place.hadar("explain", "4711").exception)


def test_what_slurm_has_changed_since_the_round_is_told(place: Place) -> None:
    """A waiting job that Slurm has started since the round is shown as running."""
    job = place.submit()
    place.round(3600.0, 1, **waiting(job.key))
    place.slurm.advance(5.0)
    assert job.state == "RUNNING"
    done = place.hadar("explain", job.key)
    assert "changed since that round: it is RUNNING now" in done.output, done.output
    assert "it starts in" not in done.output
    assert place.tree("explain", job.key)["slurm_differs"] is True


def test_left_not_taken_and_unknown_are_told_apart(place: Place) -> None:
    place.vouch()
    place.round(10.0, 5, {"900": a_job()})
    plain, described = place.submit(described=False), place.submit()
    said = {
        plain.key: ("left to Slurm", "is left to Slurm: it was not submitted by hadar-sbatch"),
        described.key: (
            "not taken by hadard",
            "was submitted by hadar-sbatch, but hadard does not",
        ),
        "4711": ("unknown", "is unknown to the journal and to Slurm"),
    }
    for job, (answer, words) in said.items():
        done = place.hadar("explain", job)
        assert done.exit_code == 1
        assert f"job {job} {words}" in done.output
        assert place.tree("explain", job)["answer"] == answer


def test_a_round_that_saw_nothing_ends_no_job(place: Place) -> None:
    """A round without a snapshot is skipped; the answer is from the round before, with its age."""
    job = place.submit()
    place.vouch()
    place.round(500.0, 1, **waiting(job.key))
    write(place.journal, a_blind_line(2, time_s=time.time() - 100.0))
    said = place.hadar("explain", job.key).output
    assert "by round 1, 8 min ago" in said, said
    # Slurm has no job 900.
    assert place.tree("explain", "900")["answer"] == "ended"


def test_a_copy_that_has_ended_does_not_end_its_job(place: Place) -> None:
    comment = encode(
        Description(steps=10, gpus=1, throughputs={"v100": 1.0}, shape=Shape(1, 1), copies=2)
    )
    first = place.slurm.submit(
        Asked(per_job=(("", 1),)), tasks=range(2), comment=comment, work_s=1e6, steps=10
    )
    job = str(first.array)
    place.slurm.advance(3.0)
    done, _ = place.slurm.find(job)
    place.slurm.cancel(done)
    place.slurm.advance(3.0)
    place.vouch()
    place.round(10.0, 1, {job: a_job("n1:V100:1", copies=2, rates={"V100": 1.0})})
    said = place.hadar("explain", done.key).output
    assert f"job {job}: running" in said, said


# Forked jobs, remarks, pins, problems.


def forked(job: str) -> dict[str, Any]:
    """Return a round with a job of two copies on four GPUs."""
    holds = {"0": gang("n1:V100:2"), "1": gang("n2:K80:2")}
    copies = {"0": {"task": f"{job}_0", "steps_per_s": 4.25}, "1": {"task": f"{job}_3"}}
    facts = {"averages": 12, "averaged_s": time.time() - 40.0, "copies": copies}
    tree = a_job(gpus=2, phase="running", copies=3, rates={"V100": 4.0, "K80": 1.0})
    return {"jobs": {job: tree | {"holds": holds}}, "forked": {job: facts}}


def test_a_forked_job_is_told_with_its_copies(place: Place) -> None:
    place.vouch()
    job = place.submit().key
    place.slurm.advance(3.0)
    place.round(10.0, 1, **forked(job))
    said = place.hadar("explain", job).output
    assert f"job {job}: running, 4 GPUs in 2 copies, by round 1" in said
    assert "250 of 1,000 steps done (25%)" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["0", f"{job}_0", "n1", "2", "V100", "4.25"] in rows
    assert ["1", f"{job}_3", "n2", "2", "K80"] in rows
    assert "its copies were averaged 12 times, last 40 s ago" in said
    found = place.tree("explain", job)["found"]
    assert (found["gpus"], found["gpus_held"], found["steps_done"]) == (2, 4, 250.0)
    assert found["forked"]["averages"] == 12
    assert found["forked"]["copies"][0] == {
        "number": 0,
        "task": f"{job}_0",
        "gang": {"n1": {"V100": 2}},
        "steps_per_s": 4.25,
        "is_pinned": False,
    }
    top = place.hadar("top", "--once").output
    (row,) = [line for line in top.splitlines() if line.startswith(f"{job} ")]
    assert row.split()[:5] == [job, "alice", "running", "4", "25%"]
    assert "copy 0 n1:V100:2 at 4.25 steps/s, copy 1 n2:K80:2" in top.replace("\n", "")
    assert "averaged 12 times" in top


def test_copies_that_share_every_step_are_said_to(place: Place) -> None:
    """The last averaging may be hours ago, and nothing is wrong."""
    place.vouch()
    job = place.submit().key
    place.slurm.advance(3.0)
    facts = forked(job)
    facts["forked"][job]["synchronous"] = True
    place.round(10.0, 1, **facts)
    said = place.hadar("explain", job).output
    assert "its copies train every step together" in said
    assert "averaged" not in said
    assert place.tree("explain", job)["found"]["forked"]["is_synchronous"] is True
    assert "synchronous" in place.hadar("top", "--once").output


def test_a_forked_job_of_an_older_journal_is_told_as_far_as_it_goes(place: Place) -> None:
    place.vouch()
    job = place.submit().key
    place.slurm.advance(3.0)
    old = forked(job)
    del old["forked"]
    place.round(10.0, 1, **old)
    said = place.hadar("explain", job).output
    assert f"job {job}: running, 4 GPUs in 2 copies" in said
    assert "averaged" not in said
    assert "4 " in place.hadar("top", "--once").output


def test_remarks_are_shown(place: Place) -> None:
    place.vouch()
    job = place.submit().key
    place.slurm.advance(3.0)
    remark = "it is not migrated: it has not reported [in this run]"
    place.round(10.0, 1, {job: a_job("n1:V100:1", remarks=[remark], rates={"V100": 1.0})})
    assert f"Hadar: {remark}" in place.hadar("explain", job).output
    assert f"n1:V100:1; {remark}" in place.hadar("top", "--once").output
    assert place.tree("explain", job)["found"]["remarks"] == [remark]


def test_pinned_is_not_starting(place: Place) -> None:
    """A pinned job is still pending in Slurm; a starting job runs, but has not reported."""
    place.vouch()
    pinned, starting = place.submit().key, place.submit().key
    jobs = {
        pinned: a_job("n1:V100:1", phase="starting", pinned=True, rates={"V100": 1.0}),
        starting: a_job("n1:V100:1", phase="starting", rates={"V100": 1.0}),
        "3": a_job(),
    }
    place.round(10.0, 1, jobs)
    assert place.tree("status")["last"]["jobs"] == {"pinned": 1, "queued": 1, "starting": 1}
    assert "jobs: 1 pinned, 1 queued, 1 starting" in place.hadar("status").output
    top = [line.split()[:3] for line in place.hadar("top", "--once").output.splitlines()]
    assert [pinned, "alice", "pinned"] in top
    assert [starting, "alice", "starting"] in top
    assert f"job {pinned}: pinned, 1 GPU" in place.hadar("explain", pinned).output


def test_problems_are_shown(place: Place) -> None:
    """Problems are read from the heartbeat, because the journal itself may have failed."""
    text = "/var/log/hadar/j.jsonl cannot be written: No space left; free [some]"
    place.vouch(journal=text)
    for command in (["status"], ["top", "--once"]):
        said = place.hadar(*command).output
        assert f"problem: journal: {text}" in said, said
    assert place.tree("status")["problems"] == {"journal": text}
    place.vouch(-1, journal=text)
    assert f"last known problem: journal: {text}" in place.hadar("status").output
    place.vouch()
    assert "problem:" not in place.hadar("status").output
    assert place.tree("status")["problems"] == {}


# The directory of the heartbeat.


def test_the_heartbeat_is_looked_for_as_by_hadar_sbatch(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run_dir of the configuration counts; without one HADAR_RUN_DIR does."""
    shared = tmp_path / "shared"
    shared.mkdir()
    beat = Heartbeat(7, "toy", time.time() + 30.0, str(tmp_path))
    write_heartbeat(shared, beat)
    monkeypatch.setenv("HADAR_RUN_DIR", str(shared))
    assert place.hadar("status").exit_code == 1
    place.config.write_text(f"journal: {place.journal}\n")
    assert place.hadar("status").exit_code == 0
    assert place.tree("status")["run_dir"] == str(shared)
    job = place.submit()
    place.round(10.0, 1, **waiting(job.key))
    assert place.tree("explain", job.key)["hadard_alive"] is True
    assert "hadard is alive" in place.hadar("top", "--once").output
