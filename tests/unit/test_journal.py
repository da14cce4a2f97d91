"""The journal: one line per round, read back as written, also after a crash cut off a line."""

from __future__ import annotations

import json
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_cluster, a_gang, a_job, a_plan, a_snapshot, golden
from hypothesis import given
from hypothesis import strategies as st
from strategies import snapshots, valid_plans

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Ended, Round, Snapshot
from hadar_slurm.engine.actions import Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import VERSION, Journal, as_line, claim_facts, gang_tree
from hadar_slurm.journal.reader import read_journal, read_last
from hadar_slurm.journal.values import credits_of, gang_from_tree, judged_of, snapshot_of

# The demo and `hadar explain` depend on this round's field names; docs/journal.md explains them.
SNAPSHOT = replace(
    a_snapshot(
        a_cluster("2xV100,2xV100+2xK80,1xP100", closed=["n3"]),
        a_job("9", 2, on="n1:V100:2", done=250.0, submitted_s=10.0),
        a_job("10", on="n2:V100:1", submitted_s=20.0),
        replace(a_job("11", submitted_s=30.0), partition="main,long"),
        a_job("12", on="n3:P100:1", phase=Phase.STOPPING),
        now_s=720.0,
        occupied="n2:K80:2",
    ),
    ended=(Ended(JobId("8"), Phase.DONE, 700.5),),
)
RECORD = RoundRecord(
    Round(2, 720.0, 360.0),
    "round end",
    "hadar-paper",
    SNAPSHOT,
    replace(
        a_plan(
            {"9": "n1:V100:2", "11": "n2:V100:1"},
            {"10": WaitReason.OUTBID, "12": WaitReason.STOPPING},
        ),
        figures=(("price.V100", 0.5), ("value", 1.5)),
    ),
    (
        Outcome(Stop(JobId("10"), 0, a_gang("n2:V100:1")), Status.DONE, "not saved within 60 s"),
        Outcome(Renew(JobId("9"), 0, a_gang("n1:V100:2")), Status.DONE),
        Outcome(Start(JobId("11"), 0, a_gang("n2:V100:1")), Status.DEFERRED, "not free yet"),
    ),
    {"observe": 0.0312345678, "plan": 0.25},
)


def write(path: Path, *records: RoundRecord) -> None:
    journal = Journal(path)
    for record in records:
        journal.write(record)
    journal.close()


def test_the_line_is_the_one_documented(tmp_path: Path) -> None:
    """The line equals the stored example, because other programs read the journal."""
    write(tmp_path / "journal.jsonl", RECORD)
    text = (tmp_path / "journal.jsonl").read_text(encoding="utf-8")
    assert text == golden("round.jsonl", text)


def test_throughputs_of_an_old_line_are_read() -> None:
    """A job's throughputs under the key `rates` of version 0.2 are read."""
    line = as_line(RECORD)
    new = snapshot_of(line)
    for job in line["jobs"].values():
        job["rates"] = job.pop("throughputs")
    assert any(job["rates"] for job in line["jobs"].values())
    assert snapshot_of(line) == new


def test_every_field_is_documented() -> None:
    """docs/journal.md mentions every field of a line."""
    page = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
    assert [name for name in as_line(RECORD) if f"`{name}`" not in page] == []


def test_claims_that_were_judged_are_read_back() -> None:
    """The field has users, workloads and jobs; a credit is the same but for rounding."""
    judged = [
        Judged(JobId("7_1"), "ada", "bert", 600.4, 1801.0, 2.5),
        Judged(JobId("8"), "ada", "bert", 600.0, 590.0),
        Judged(JobId("9"), "eve", "", 1.0, 400.0),
    ]
    credit = Credit(log_off=1.2, speeds_off=0.3, jobs=4, at_s=1e9)
    line = claim_facts(judged, {"ada": credit})
    assert line["judged"]["ada"] == {"bert": {"7_1": [600, 1801, 2.5], "8": [600, 590]}}
    assert [replace(job, claimed_s=round(job.claimed_s)) for job in judged] == judged_of(line)
    found = credits_of(json.loads(json.dumps(line)))["ada"]
    assert (found.jobs, found.at_s) == (4, 1e9)
    assert found.factor(1e9) == pytest.approx(credit.factor(1e9), rel=1e-3)
    assert found.speeds_factor(1e9) == pytest.approx(credit.speeds_factor(1e9), rel=1e-3)
    assert claim_facts([], {}) == {}


def test_the_steps_claimed_are_read_back_where_others_are_planned_with() -> None:
    spec = replace(SNAPSHOT.jobs[0].spec, claimed_steps=70)
    jobs = (replace(SNAPSHOT.jobs[0], spec=spec), *SNAPSHOT.jobs[1:])
    line = as_line(replace(RECORD, snapshot=replace(SNAPSHOT, jobs=jobs)))
    assert [job.get("claimed_steps") for job in line["jobs"].values()] == [70, None, None, None]
    assert [job.spec.claimed_steps for job in snapshot_of(line).jobs] == [70, 0, 0, 0]


@given(snapshot=snapshots(), data=st.data())
def test_every_round_is_read_back(
    snapshot: Snapshot, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every snapshot, plan and outcome is read back as written."""
    plan = data.draw(valid_plans(snapshot))
    outcomes = [Outcome(action, Status.DONE, "ok") for action in reconcile(snapshot, plan)]
    record = RoundRecord(
        Round(3, snapshot.now_s, 360.0, may_move=False), "change", "p", snapshot, plan, outcomes
    )
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    write(path, record, record)
    lines = list(read_journal(path))
    assert lines == [as_line(record)] * 2
    assert {key: gang_from_tree(held["0"]) for key, held in lines[0]["plan"].items()} == {
        job_id: allocation.gangs[0] for job_id, allocation in plan.allocations
    }
    assert set(lines[0]["jobs"]) == set(snapshot.by_id)
    assert set(lines[0]["waiting"]) == set(dict(plan.waiting))
    assert len(lines[0]["actions"]) == len(outcomes)


@given(snapshot=snapshots())
def test_what_was_seen_can_be_planned_from_again(snapshot: Snapshot) -> None:
    """The snapshot read from a line equals the original, except for what lines leave out."""
    line = as_line(RoundRecord(Round(3, snapshot.now_s, 360.0), "change", "p", snapshot))
    again = snapshot_of(json.loads(json.dumps(line)))
    assert as_line(RoundRecord(Round(3, snapshot.now_s, 360.0), "change", "p", again)) == line
    assert again.cluster == snapshot.cluster
    assert again.occupied == snapshot.occupied
    for job in snapshot.jobs:
        other = again.by_id[job.job_id]
        assert replace(other.spec, throughputs=job.spec.throughputs, name=job.spec.name) == job.spec
        assert (other.allowed_nodes, other.bound_type) == (job.allowed_nodes, job.bound_type)
        assert (other.phase, other.allocation) == (job.phase, job.allocation)
        assert other.partition == job.partition


def test_a_round_that_saw_nothing_says_why(tmp_path: Path) -> None:
    """A round without snapshot and plan has a line with the errors."""
    record = RoundRecord(Round(0, 5.0, 360.0), "start", "p", errors=("squeue is not installed",))
    write(tmp_path / "j", record)
    (line,) = read_journal(tmp_path / "j")
    assert line["plan"] is None
    assert line["errors"] == ["squeue is not installed"]
    assert (line["time_s"], line["waiting"], line["actions"]) == (5.0, {}, [])
    assert "jobs" not in line


@given(gang=snapshots().map(lambda s: [g for job in s.jobs for g in job.allocation.gangs]))
def test_a_gang_survives_its_tree(gang: list[object]) -> None:
    """A gang equals the gang read from its tree."""
    for one in gang:
        assert gang_from_tree(gang_tree(one)) == one  # type: ignore[arg-type]


def test_a_journal_is_appended_to(tmp_path: Path) -> None:
    """A restarted daemon appends to the journal; a missing directory is created."""
    path = tmp_path / "log" / "journal.jsonl"
    write(path, RECORD)
    write(path, RECORD)
    assert len(list(read_journal(path))) == 2


@pytest.mark.parametrize("kept", [1, 10, 200])
def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path, kept: int) -> None:
    """Part of a line at the end is neither an error nor a round."""
    path = tmp_path / "journal.jsonl"
    write(path, RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    assert len(list(read_journal(path))) == 1


def test_a_line_cut_short_is_not_appended_to(tmp_path: Path) -> None:
    """Part of a line at the end is removed before the next round is written."""
    path = tmp_path / "journal.jsonl"
    write(path, RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    write(path, RECORD)
    assert path.read_bytes() == whole + whole
    path.write_bytes(whole[:50])
    write(path, RECORD)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json\n", ":2: not a journal line"),
        ('{"version": 99}\n', f":2: journal version 99, this reads {VERSION}"),
        ("{}\n", f":2: journal version None, this reads {VERSION}"),
        ("[1]\n", f":2: journal version None, this reads {VERSION}"),
        ("\n", ":2: not a journal line"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The error of any other damage names file and line."""
    path = tmp_path / "journal.jsonl"
    write(path, RECORD)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    with pytest.raises(ConfigError, match=f"^{path}{words}"):
        list(read_journal(path))


def test_a_hostile_name_stays_on_its_line(tmp_path: Path) -> None:
    """Line breaks and quotes in a detail do not begin another line."""
    evil = 'x"\n{"version": 1}\n\u2028\ud800'
    action = Start(JobId("11"), 0, a_gang("n2:V100:1"))
    record = replace(RECORD, outcomes=[Outcome(action, Status.REFUSED, evil)])
    write(tmp_path / "j", record)
    (line,) = read_journal(tmp_path / "j")
    assert line["actions"][0]["detail"] == evil


def test_the_line_is_written_before_the_round_is_over(tmp_path: Path) -> None:
    """The line is in the file as soon as the round is written."""
    journal = Journal(tmp_path / "j")
    journal.write(RECORD)
    assert json.loads((tmp_path / "j").read_text(encoding="utf-8"))["round"] == 2
    journal.close()


@pytest.mark.parametrize("number", [0, 1, 2, 3, 9])
def test_the_last_rounds_are_read_without_the_rest(tmp_path: Path, number: int) -> None:
    """The last rounds are read from long lines, beside a partial line, and after a rotation."""
    path = tmp_path / "journal.jsonl"
    rounds = [replace(RECORD, errors=("x" * 90_000, str(index))) for index in range(3)]
    write(path, *rounds)
    lines = [as_line(one) for one in rounds]
    expected = lines[len(lines) - min(number, 3) :]
    assert read_last(path, number) == expected
    with path.open("a") as file:
        file.write('{"version": 1, "rou')
    assert read_last(path, number) == expected
    write(tmp_path / "journal.jsonl.1", rounds[0], rounds[1])
    path.unlink()
    write(path, rounds[2])
    assert read_last(path, number) == expected
    path.unlink()
    assert read_last(path, number) == lines[:2][len(lines[:2]) - min(number, 2) :]


def test_where_no_journal_is_there_are_no_rounds(tmp_path: Path) -> None:
    assert read_last(tmp_path / "journal.jsonl", 5) == []


def test_last_lines_that_are_no_rounds_are_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for text, said in (("nonsense", "not a journal line"), ('{"version": 9}', "version 9")):
        path.write_text(text + "\n")
        with pytest.raises(ConfigError, match=said):
            read_last(path, 1)


@pytest.mark.parametrize("keep", [1, 5])
def test_a_journal_whose_directory_was_moved_away_is_begun_again(tmp_path: Path, keep: int) -> None:
    """The directory and the file are created again, and the moved file is left unchanged."""
    path = tmp_path / "log" / "journal.jsonl"
    journal = Journal(path, max_bytes=1, keep=keep)
    journal.write(RECORD)
    path.parent.rename(tmp_path / "away")
    for _ in range(3):
        journal.write(RECORD)
    journal.close()
    assert len(list(read_journal(tmp_path / "away" / "journal.jsonl.1"))) == 1
    assert len(list(read_journal(path.with_name("journal.jsonl.1")))) == 1


def test_a_journal_is_taken_up_again_when_it_can_be_written(tmp_path: Path) -> None:
    """A failed write raises OSError for its round only; the next write opens the file again."""
    path = tmp_path / "log" / "journal.jsonl"
    journal = Journal(path)
    journal.write(RECORD)
    path.unlink()
    path.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="Is a directory"):
            journal.write(RECORD)
    path.rmdir()
    journal.write(RECORD)
    journal.close()
    assert len(list(read_journal(path))) == 1


def test_a_full_disk_costs_the_rounds_that_it_has_no_room_for(tmp_path: Path) -> None:
    """A round that does not fit is removed from the file, and the earlier lines stay whole."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.write(RECORD)
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        with pytest.raises(OSError, match="File too large"):
            journal.write(RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == size
    journal.write(RECORD)
    journal.close()
    assert len(list(read_journal(path))) == 2
