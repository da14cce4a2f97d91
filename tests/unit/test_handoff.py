"""The progress report: a written report is read back, an untrusted one is refused."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm import handoff
from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.notices import Notices
from hadar_slurm.handoff import ProgressReport, ReportError, user_reports

GOOD = {"restart": 1, "state": "running", "steps_done": 7, "steps_per_s": 2.5, "version": 1}
RUNNING = ProgressReport(restart=1, state="running", steps_done=7)
ME = os.getuid()

reports = st.builds(
    ProgressReport,
    restart=st.integers(0, 10**6),
    state=st.sampled_from(handoff.STATES),
    steps_done=st.integers(0, 10**15),
    steps_per_s=st.floats(0, 1e9),
    time_s=st.floats(0, 1e12),
    own_steps=st.integers(0, 10**15),
    aggregation_s=st.floats(0, 1e9),
    averages=st.integers(0, 10**15),
    listens=st.booleans(),
    synchronous=st.booleans(),
)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def text_of(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


@given(report=reports)
def test_what_is_written_is_read_back(
    report: ProgressReport, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every report is read back unchanged."""
    spool = tmp_path_factory.mktemp("spool")
    handoff.write_report(user_reports(spool, ME), "12", report)
    assert handoff.read_report(spool, "12", owner_uid=ME) == report


def test_a_job_tells_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program reports its progress; job id and restart come from Slurm's variables."""
    monkeypatch.setenv("HADAR_SPOOL", str(user_reports(tmp_path, ME)))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    handoff.tell("running", 3)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    handoff.tell("running", 3, 1.5)
    report = handoff.read_report(tmp_path, "12", owner_uid=ME)
    assert report is not None
    told = (report.restart, report.state, report.steps_done, report.steps_per_s)
    assert told == (2, "running", 3, 1.5)


def test_a_checkpoint_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later reports repeat it, those of other processes and runs too; its steps are those kept."""
    monkeypatch.setenv("HADAR_SPOOL", str(user_reports(tmp_path, ME)))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setattr(handoff, "_SAVED", {})
    command = [sys.executable, "-m", "hadar_slurm.handoff"]
    for _ in range(2):
        before_s = time.time()
        subprocess.run([*command, "checkpoint", "40"], check=True)
        handoff.tell("running", 45)
        first = handoff.read_report(tmp_path, "4711", owner_uid=ME)
        assert first is not None
        assert (first.state, first.steps_done, first.saved_steps) == ("running", 45, 40)
        assert before_s - 1.0 <= first.saved_s <= time.time()
        handoff._SAVED.clear()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    handoff.tell("running", 41)
    again = handoff.read_report(tmp_path, "4711", owner_uid=ME)
    assert again is not None
    assert (again.restart, again.saved_steps, again.saved_s) == (1, 40, first.saved_s)
    handoff.tell_checkpoint(50, 2.0)
    last = handoff.read_report(tmp_path, "4711", owner_uid=ME)
    assert last is not None
    assert (last.steps_done, last.steps_per_s, last.saved_steps) == (50, 2.0, 50)
    assert last.saved_s > first.saved_s
    assert "ended before it reported" not in capsys.readouterr().err
    for words in ([], ["saved", "4"], ["checkpoint", "-1"], ["checkpoint", "many"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, "checkpoint STEPS" in done.stderr) == (2, True)


def test_what_cannot_be_told_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be written is a warning, not an error."""
    (tmp_path / "spool").touch()
    monkeypatch.setenv("HADAR_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with pytest.warns(UserWarning, match="no progress report"):
        handoff.tell("running", 3)


def test_no_report_yet_is_none(tmp_path: Path) -> None:
    """A job without a report is not an error."""
    assert handoff.read_report(tmp_path, "12", owner_uid=ME) is None


def test_a_report_replaces_the_one_before_and_leaves_no_draft(tmp_path: Path) -> None:
    """A job has one file, however many reports it writes."""
    for steps in range(3):
        handoff.write_report(user_reports(tmp_path, ME), "12", ProgressReport(0, "running", steps))
    assert [path.name for path in (user_reports(tmp_path, ME) / "12").iterdir()] == [
        "progress.json"
    ]
    report = handoff.read_report(tmp_path, "12", owner_uid=ME)
    assert report is not None
    assert report.steps_done == 2


def test_a_reader_never_sees_half_a_report(tmp_path: Path) -> None:
    """Every read during writes of another thread returns a whole report."""
    is_over = threading.Event()

    def write() -> None:
        for steps in range(500):
            handoff.write_report(
                user_reports(tmp_path, ME), "12", ProgressReport(0, "running", steps)
            )
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    try:
        while not is_over.is_set():
            report = handoff.read_report(tmp_path, "12", owner_uid=ME)
            seen.append(report.steps_done if report else 0)
    finally:
        writer.join()
    assert seen == sorted(seen)


def test_a_report_is_readable_by_all_under_a_strict_umask(tmp_path: Path) -> None:
    """The daemon need not run as root to read the report of a user whose umask is 077."""
    with umask(0o077):
        handoff.write_report(user_reports(tmp_path, ME), "12", RUNNING)
    path = handoff.report_path(user_reports(tmp_path, ME), "12")
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_where_jobs_are_hidden_reports_are_closed_to_others(tmp_path: Path) -> None:
    """Below a directory that cannot be listed, as hadard makes it: only its owner reads."""
    for mode in (0o1777, 0o1733):
        tmp_path.chmod(mode)
        handoff.write_report(user_reports(tmp_path, ME), "12", RUNNING)
        is_open = mode == 0o1777
        assert user_reports(tmp_path, ME).stat().st_mode & 0o777 == (0o755 if is_open else 0o700)
        assert handoff.read_report(tmp_path, "12", owner_uid=ME) == RUNNING


@pytest.mark.skipif(ME != 0, reason="only root can be several users")
def test_hadards_account_reads_reports_that_are_closed(tmp_path: Path) -> None:
    """hadard need not be root: the account that owns the directory of all reports may read."""
    with tempfile.TemporaryDirectory(prefix="hadar-reports-") as name:
        place = Path(name)
        place.chmod(0o1733)
        os.chown(place, 7, -1)
        for _ in range(2):
            handoff.write_report(user_reports(place, ME), "12", RUNNING)
        if user_reports(place, ME).stat().st_mode & 0o777 == 0o755:
            pytest.skip("this file system keeps no access lists")
        path = handoff.report_path(user_reports(place, ME), "12")
        may_read = [
            subprocess.run(["cat", path], user=uid, group=uid, extra_groups=[], check=False)
            for uid in (7, 8)
        ]
        assert [done.returncode for done in may_read] == [0, 1]


@pytest.mark.skipif(ME != 0, reason="only root can be several users")
@pytest.mark.parametrize("has_access_lists", [True, False])
def test_reports_that_hadard_reads_are_never_closed_to_it(
    monkeypatch: pytest.MonkeyPatch, *, has_access_lists: bool
) -> None:
    """Neither where it closes the directory of all later, nor without access lists."""

    def set_none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no access lists")

    modes: list[int] = []
    fchmod = os.fchmod

    def change(descriptor: int, mode: int) -> None:
        modes.append(mode)
        fchmod(descriptor, mode)

    if not has_access_lists:
        monkeypatch.setattr(os, "setxattr", set_none)
    with tempfile.TemporaryDirectory(prefix="hadar-reports-") as name:
        place = Path(name)
        os.chown(place, 7, -1)
        place.chmod(0o1777)
        handoff.write_report(user_reports(place, ME), "12", RUNNING)
        place.chmod(0o1733)
        monkeypatch.setattr(os, "fchmod", change)
        for _ in range(2):
            handoff.write_report(user_reports(place, ME), "12", RUNNING)
        assert user_reports(place, ME).stat().st_mode & 0o050 == 0o050
    assert 0o700 not in modes


def test_the_first_report_of_a_job_removes_those_of_a_month_ago(tmp_path: Path) -> None:
    """Of its own user, with the drafts of killed processes; what is not a report stays."""
    own = user_reports(tmp_path, ME)
    for job in ("1", "2", "3", "4"):
        handoff.write_report(own, job, RUNNING)
    (own / "2" / "mine").touch()
    (own / "3" / ".progress.json.99").touch()
    for job, days in (("1", 29), ("2", 31), ("3", 31), ("4", 31), (".swept", 2)):
        then_s = time.time() - 86_400 * days
        os.utime(own / job, (then_s, then_s))
    handoff.write_report(own, "1", RUNNING)
    assert len(jobs_in(own)) == 4
    handoff.write_report(own, "5", RUNNING)
    assert jobs_in(own) == ["1", "2", "5"]
    assert (own / "2" / "mine").exists()


@pytest.mark.parametrize(("hours", "is_removed"), [(1, False), (25, True), (-1, True)])
def test_old_reports_are_looked_for_once_a_day(
    tmp_path: Path, hours: int, *, is_removed: bool
) -> None:
    """Not by each job of an array that starts; a time to come counts for nothing."""
    own = user_reports(tmp_path, ME)
    handoff.write_report(own, "1", RUNNING)
    for job, hours_ago in (("1", 24 * 31), (".swept", hours)):
        then_s = time.time() - 3600 * hours_ago
        os.utime(own / job, (then_s, then_s))
    handoff.write_report(own, "2", RUNNING)
    assert jobs_in(own) == (["2"] if is_removed else ["1", "2"])
    is_marked = abs(time.time() - (own / ".swept").stat().st_mtime) < 60
    assert is_marked == is_removed


def jobs_in(own: Path) -> list[str]:
    """Return the jobs that have a directory."""
    return sorted(each.name for each in own.iterdir() if each.name != ".swept")


def test_a_user_whose_mark_cannot_be_written_reports_all_the_same(tmp_path: Path) -> None:
    """Its name is taken by a directory, as of an old one."""
    own = user_reports(tmp_path, ME)
    (own / ".swept").mkdir(parents=True)
    os.utime(own / ".swept", (1.0, 1.0))
    handoff.write_report(own, "12", RUNNING)
    assert handoff.read_report(tmp_path, "12", owner_uid=ME) == RUNNING


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    """A link planted in the job's directory cannot make the job overwrite its owner's file."""
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    own = user_reports(tmp_path, ME) / "12"
    own.mkdir(parents=True)
    (own / f".progress.json.{os.getpid()}").symlink_to(precious)
    handoff.write_report(user_reports(tmp_path, ME), "12", RUNNING)
    assert precious.read_text(encoding="utf-8") == "mine"
    assert handoff.read_report(tmp_path, "12", owner_uid=ME) == RUNNING


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    """A report counts only if its directory belongs to the job's owner."""
    handoff.write_report(user_reports(tmp_path, ME), "12", RUNNING)
    user_reports(tmp_path, ME).rename(user_reports(tmp_path, ME + 1))
    with pytest.raises(handoff.SquattedError, match=f"belongs to uid {ME}, not to uid {ME + 1}"):
        handoff.read_report(tmp_path, "12", owner_uid=ME + 1)


@pytest.mark.skipif(ME != 0, reason="only root can be several users")
@pytest.mark.parametrize("part", ["u7", "u7/12", "u7/12/progress.json"])
def test_another_users_part_of_a_path_is_refused(part: str, tmp_path: Path) -> None:
    """Each directory of the path, and the file, must belong to the job's owner."""
    handoff.write_report(user_reports(tmp_path, 7).parent / "made", "12", RUNNING)
    (tmp_path / "made").rename(tmp_path / "u7")
    for path in ("u7", "u7/12", "u7/12/progress.json"):
        os.chown(tmp_path / path, 8 if path == part else 7, -1)
    with pytest.raises(handoff.SquattedError, match="belongs to uid 8, not to uid 7"):
        handoff.read_report(tmp_path, "12", owner_uid=7)
    os.chown(tmp_path / part, 7, -1)
    assert handoff.read_report(tmp_path, "12", owner_uid=7) == RUNNING


@pytest.mark.skipif(ME != 0, reason="only root can be several users")
def test_a_directory_that_another_user_made_is_not_written_to(tmp_path: Path) -> None:
    """The error names the directory's owner, and nothing is written."""
    own = user_reports(tmp_path, ME)
    own.mkdir(mode=0o777)
    os.chown(own, 8, -1)
    with pytest.raises(PermissionError, match=f"belongs to uid 8, not to uid {ME}"):
        handoff.write_report(own, "12", RUNNING)
    assert list(own.iterdir()) == []


def test_a_link_is_refused(tmp_path: Path) -> None:
    """A symbolic link is not followed, even to a valid report."""
    own = user_reports(tmp_path, ME)
    handoff.write_report(own, "12", RUNNING)
    (own / "13").mkdir()
    handoff.report_path(own, "13").symlink_to(handoff.report_path(own, "12"))
    (own / "14").symlink_to(own / "12")
    for job in ("13", "14"):
        with pytest.raises(ReportError, match=r"symbolic links|Not a directory"):
            handoff.read_report(tmp_path, job, owner_uid=ME)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """A named pipe without a writer does not block the daemon."""
    (user_reports(tmp_path, ME) / "12").mkdir(parents=True)
    os.mkfifo(handoff.report_path(user_reports(tmp_path, ME), "12"))
    with pytest.raises(ReportError, match="not a plain file"):
        handoff.read_report(tmp_path, "12", owner_uid=ME)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A directory in place of the report raises ReportError."""
    handoff.report_path(user_reports(tmp_path, ME), "12").mkdir(parents=True)
    with pytest.raises(ReportError, match="not a plain file"):
        handoff.read_report(tmp_path, "12", owner_uid=ME)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """A file larger than the limit is refused."""
    handoff.write_report(user_reports(tmp_path, ME), "12", RUNNING)
    with handoff.report_path(user_reports(tmp_path, ME), "12").open("ab") as file:
        file.truncate(10**9)
    with pytest.raises(ReportError, match="larger than 65536 bytes"):
        handoff.read_report(tmp_path, "12", owner_uid=ME)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not a progress report"),
        (b"[]", "not a progress report"),
        (b"{}", "not a progress report"),
        (b"\xff\xfe", "not a progress report"),
        (b"[" * 50_000, "not a progress report"),
        (text_of(restart=None), "not a progress report"),
        (text_of(steps_done="many"), "not a progress report"),
        (text_of(steps_done=math.nan), "not a progress report"),
        (text_of(steps_done=math.inf), "not a progress report"),
        (text_of(version=2), "version 2, this reads 1"),
        (text_of(state="happy"), "state 'happy', not one of running, saved, done"),
        (text_of(restart=-1), "a number is negative"),
        (text_of(steps_done=-1), "a number is negative"),
        (text_of(steps_done=10**400), "a number is negative, not finite or above"),
        (text_of(steps_per_s=math.inf), "a number is negative, not finite"),
        (text_of(steps_per_s=math.nan), "a number is negative, not finite"),
        (text_of(time_s=-1.0), "a number is negative"),
    ],
)
def test_a_report_that_cannot_be_true_is_refused(text: bytes, words: str) -> None:
    """The error names the file and the fault."""
    with pytest.raises(ReportError, match=f"there: {words}"):
        handoff.parse_report(text, "there")


def test_what_is_said_of_reports_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """A job may replace its report by another wrong one before each round."""
    notices = Notices()
    for number in range(1000):
        for text in (text_of(state=f"{number}" * 9000), text_of(time_s=f"{number}x" * 9000)):
            with pytest.raises(ReportError) as caught:
                handoff.parse_report(text, "there")
            assert len(str(caught.value)) < 300
            notices.say(JobId("7"), str(caught.value), logging.WARNING)
        notices.keep([JobId("7")])
    assert len(caplog.records) == 100
    notices.keep([])
    notices.say(JobId("7"), "again", logging.WARNING)
    assert len(caplog.records) == 101


@given(
    text=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text(), inner),
    ).map(lambda tree: json.dumps(tree).encode())
)
def test_nothing_but_a_report_error_comes_of_any_text(text: bytes) -> None:
    """Any text gives a report or a ReportError."""
    with contextlib.suppress(ReportError):
        assert handoff.parse_report(text, "there").state in handoff.STATES


def test_unknown_keys_are_left_alone() -> None:
    """Unknown keys, which a later version of the job's library may add, are ignored."""
    assert handoff.parse_report(text_of(mood="good"), "there") == ProgressReport(
        1, "running", 7, 2.5
    )


def test_the_module_is_python_3_9() -> None:
    """The module has the syntax of Python 3.9, which training environments may run."""
    source = Path(handoff.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 9))


def test_a_report_without_the_key_promises_to_listen() -> None:
    """`listens` is true in a report without the key; any value but true counts as false."""
    assert handoff.parse_report(text_of(), "here").listens
    assert handoff.parse_report(text_of(listens=True), "here").listens
    assert not handoff.parse_report(text_of(listens=False), "here").listens
    assert not handoff.parse_report(text_of(listens="yes"), "here").listens


TELLS = f"""
import signal, sys
sys.path.insert(0, {str(Path(handoff.__file__).parents[1])!r})
from hadar_slurm import handoff
if len(sys.argv) > 1:
    signal.signal(signal.SIGUSR1, getattr(signal, sys.argv[1], lambda *_: None))
print(handoff.listens_now())
"""


def listens(tmp_path: Path, script: str, *, title: str = "slurmstepd: [7.batch]") -> bool:
    """Return the result of listens_now in a program run by a batch script below a slurmstepd."""
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "batch").write_text(script.format(tell=f"{sys.executable} {tmp_path}/tells.py"))
    done = subprocess.run(
        [title],
        executable="/bin/bash",
        input=f"/bin/bash {tmp_path}/batch; true\n",
        env={key: value for key, value in os.environ.items() if key != "SLURM_STEP_ID"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return {"True\n": True, "False\n": False}[done.stdout]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("script", "is_listening"),
    [
        ("exec {tell} handler", True),
        ("exec {tell}", False),
        ("trap '' USR1; exec {tell}", False),
        ("{tell} handler; true", False),
        ("trap '' USR1; {tell} handler; true", True),
        ("trap : USR1; {tell} handler; true", True),
        ("trap : USR1; {tell} SIG_IGN; true", False),
        ("trap : USR1; {tell} SIG_DFL; true", False),
    ],
)
def test_a_program_listens_if_it_has_a_handler_and_its_batch_script_survives(
    tmp_path: Path, script: str, *, is_listening: bool
) -> None:
    """The program needs a handler for USR1, and its batch script must survive USR1."""
    assert listens(tmp_path, script) is is_listening


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("title", ["slurmstepd: [7.0]", "bash"])
def test_in_a_step_and_outside_of_slurm_the_program_alone_decides(
    tmp_path: Path, title: str
) -> None:
    """In a step and outside of Slurm only the program's own handler counts."""
    assert listens(tmp_path, "{tell} handler; true", title=title)
    assert not listens(tmp_path, "trap : USR1; {tell}; true", title=title)


def test_who_reports_for_another_process_may_say_that_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument `listens` overrides the check of this process, which has no handler."""
    monkeypatch.setenv("HADAR_SPOOL", str(user_reports(tmp_path, ME)))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    for said, told in ((None, False), (True, True)):
        handoff.tell("running", 3, listens=said)
        report = handoff.read_report(tmp_path, "12", owner_uid=ME)
        assert report is not None
        assert report.listens is told


@pytest.mark.parametrize(("state", "is_told"), [("running", True), ("saved", False)])
def test_a_run_tells_when_the_one_before_ended_without_saving(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    *,
    is_told: bool,
) -> None:
    """One line is printed if the run before this one ended without a saved checkpoint."""
    monkeypatch.setenv("HADAR_SPOOL", str(user_reports(tmp_path, ME)))
    monkeypatch.setenv("SLURM_JOB_ID", f"{state}-12")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    handoff.tell(state, 70)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    handoff.tell("running", 60)
    handoff.tell("running", 80)
    told = capsys.readouterr().err
    assert told.count("\n") == is_told
    assert ("run 1 of job" in told) is is_told


def test_files_of_another_version_name_the_remedy(tmp_path: Path) -> None:
    """Whatever their form: it may be another one too."""
    path = tmp_path / "assignment.json"
    path.write_text('{"version": 2, "shares": [1]}')
    with pytest.raises(handoff.AssignmentError, match="version 2, this reads 1: the job needs the"):
        handoff.read_assignment(path)
    with pytest.raises(ReportError, match="hadar-runtime of hadard's version"):
        handoff.parse_report(text_of(version=2), "there")
