"""A job is the same with and without hadar-sbatch, but for what docs/hadar-sbatch.md tells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from integration.invocations import HOSTILE, INVOCATIONS, SCRIPT, Invocation
from integration.site import HADAR_SBATCH, LIMIT_S, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.metadata import decode

pytestmark = pytest.mark.slurm

PAGE = Path(__file__).parents[2] / "docs" / "hadar-sbatch.md"
OWN = ("--hadar-throughput=v100=20,p100=20,k80=20", "--hadar-steps=100")
_JOB = re.compile(r"(?:^Submitted batch job |\A)(\d+)$", re.MULTILINE)
_TRIAL = re.compile(r"Job (\d+) to start")
# When a job may start changes with every job that comes before it.
_START = re.compile(r"(?<=to start at )\S+")
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z/:]*)=")
_TIME = re.compile(r"(?<!\d)\d{10}(?!\d)")
# Without multifactor priorities every new job is worth one less than the one before.
_BASIC_PRIORITY = re.compile(r"(?<!\d)42949\d{5}(?!\d)")
# Where a job's number stands, or may.
_IDS = frozenset(["JobId", "ArrayJobId", "HetJobId", "HetJobIdSet"])
_FILES = frozenset(["StdErr", "StdOut"])
# When the scheduler came by.
_CHANCE = frozenset(["AccrueTime", "LastSchedEval", "Scheduler"])


def _is_now(time_s: int) -> bool:
    return abs(time_s - time.time()) < 86400


Differences = dict[str, tuple[object, object]]


@dataclass(frozen=True)
class Answer:
    """What a submission said: status and both streams, and in them the job."""

    status: int
    stdout: str
    stderr: str
    job: str

    def neutral(self, text: str, *, names_job: bool = True) -> str:
        """Return a text without what differs from one submission to the next, whoever submits."""
        text = _TIME.sub(lambda found: "NOW" if _is_now(int(found[0])) else found[0], text)
        for ahead in range(3 if self.job and names_job else 0):
            text = re.sub(rf"(?<!\d){int(self.job) + ahead}(?!\d)", f"JOB+{ahead}", text)
        return _START.sub("THEN", _BASIC_PRIORITY.sub("PRIORITY", text))


@dataclass(frozen=True)
class Result:
    """What came of a submission: sbatch's answer, and the job as Slurm and its files have it."""

    answer: Answer
    components: tuple[Mapping[str, str], ...]
    script: bytes
    variables: Mapping[str, str]

    def facts(self) -> dict[str, object]:
        """Return all that two submissions should have in common, by name."""
        said = self.answer
        # What nothing runs on starts at the end of time, a second later in every second.
        lines = re.sub(r"(?<=to start at )\S+", "", said.neutral(said.stderr)).splitlines()
        facts: dict[str, object] = {
            "status": said.status,
            "stdout": said.neutral(said.stdout),
            "stderr": [line for line in lines if not line.startswith("hadar-sbatch: ")],
            "notes": [line for line in lines if line.startswith("hadar-sbatch: ")],
            "script": self.script,
            **self.variables,
        }
        for number, fields in enumerate(self.components):
            facts |= {f"{key} {number}" if number else key: fields[key] for key in fields}
        return facts

    def differs_from(self, other: Result) -> Differences:
        """Return what is not the same, by name: there and here."""
        here, there = self.facts(), other.facts()
        names = {*here, *there}
        return {
            name: (there.get(name), here.get(name))
            for name in sorted(names)
            if here.get(name) != there.get(name)
        }


@pytest.fixture
def place(site: Site) -> Iterator[Site]:
    """A site where nothing starts, with the files that the command lines name."""
    for name in ("dir", "sub", "bin"):
        (site.directory / name).mkdir()
    for path in ("job.sh", f"dir/{HOSTILE}", "sub/job.sh", "bin/only-on-path"):
        (site.directory / path).write_text(SCRIPT.replace("from-script", f"in-{path[:3]}"))
    (site.directory / "nodes.txt").write_text("n1\nn2\n")
    (site.directory / "env.bin").write_bytes(b"A=1\0B=two words\0")
    site.runner.run(["scontrol", "update", "PartitionName=main", "State=DOWN"])
    yield site
    site.runner.run(["scontrol", "update", "PartitionName=main", "State=UP"])


def submit(site: Site, command: Sequence[str], call: Invocation) -> Answer:
    """Submit as a user would."""
    done = subprocess.run(
        [*command, *call.words],
        cwd=site.directory,
        env={**site.environment, "SLURM_TIME_FORMAT": "%s", **call.environment},
        input=(call.stdin or "").encode("latin-1"),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    stdout, stderr = os.fsdecode(done.stdout), os.fsdecode(done.stderr)
    said = _JOB.search(stdout) or _TRIAL.search(stderr)
    return Answer(done.returncode, stdout, stderr, said[1] if said else "")


def results(site: Site, answers: Sequence[Answer]) -> list[Result]:
    """Return what Slurm has of the jobs that were submitted, when it has looked at all of them."""
    jobs = site.cluster.runner()
    text = ""

    def is_settled() -> bool:
        nonlocal text
        text, before = jobs.run(["scontrol", "show", "job", "-o"]), text
        return text == before and " JobState=PENDING Reason=None " not in text

    # Slurm looks at more jobs than default_queue_depth once a minute.
    eventually(is_settled, "every job has a reason", 3 * LIMIT_S)
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        numbers = dict(re.findall(r"\b(JobId|ArrayJobId|HetJobId)=(\d+)", line))
        leader = numbers.get("HetJobId") or numbers.get("ArrayJobId") or numbers["JobId"]
        lines.setdefault(leader, []).append(line)
    return [_result(site, answer, lines.get(answer.job, [])) for answer in answers]


def _result(site: Site, answer: Answer, lines: Sequence[str]) -> Result:
    script, variables = b"", dict[str, str]()
    if lines:
        number = int(answer.job)
        files = site.cluster.directory / "state" / f"hash.{number % 10}" / f"job.{number}"
        script = (files / "script").read_bytes().removesuffix(b"\0")
        pairs = os.fsdecode((files / "environment").read_bytes()[4:]).split("\0")
        variables = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    components = tuple(_fields(line, answer) for line in lines)
    return Result(answer, components, script, variables)


def _fields(line: str, answer: Answer) -> dict[str, str]:
    """Return the fields of a line of `scontrol show job -o`; values may hold spaces."""
    found = list(_FIELD.finditer(line))
    ends = [*(match.start() for match in found[1:]), len(line)]
    fields = {}
    for match, end in zip(found, ends, strict=True):
        key, value = match[1], line[match.end() : end].rstrip(" ")
        folder, slash, name = value.rpartition("/") if key in _FILES else ("", "", value)
        name = answer.neutral(name, names_job=key in _FILES or key in _IDS)
        fields[key] = folder + slash + name
    if fields.get("Reason") == "PartitionDown" and fields["EligibleTime"] == "Unknown":
        # Of a job with nowhere to run Slurm may not have asked yet whether it is due.
        fields["EligibleTime"] = "NOW"
    return {key: value for key, value in fields.items() if key not in _CHANCE}


def compared(
    site: Site,
    calls: Sequence[Invocation],
    own: Callable[[Invocation], Sequence[str]] | None = None,
) -> list[tuple[Invocation, Result, Differences]]:
    """Submit each call by sbatch and by hadar-sbatch; return ours, and how it differs.

    `own` gives the options of ours that the latter has besides.
    """
    first = site.submit("-H", "--wrap=true", command=["sbatch"])
    calls = [
        replace(call, words=tuple(word.replace("{first}", first) for word in call.words))
        for call in calls
    ]
    commands = [
        *(["sbatch"] for _ in calls),
        *([*HADAR_SBATCH, *(own(call) if own else ())] for call in calls),
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(submit, [site] * len(commands), commands, [*calls, *calls]))
    found = results(site, answers)
    pairs = zip(calls, found[: len(calls)], found[len(calls) :], strict=True)
    return [(call, ours, ours.differs_from(theirs)) for call, theirs, ours in pairs]


def documented(*when: str) -> set[str]:
    """Return the fields that the page says are set on a job of one of these kinds."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(when) <= {kind for _, kind in rows}
    return {name for names, kind in rows if kind in when for name in re.findall(r"`(.*?)`", names)}


def test_without_our_options_nothing_differs(place: Site) -> None:
    """Job, script, environment, both streams and status, with hadard alive and enforcing."""
    place.vouch()
    found = compared(place, INVOCATIONS)
    assert [(call, differences) for call, _, differences in found if differences] == []
    assert sum(bool(ours.components) for _, ours, _ in found) >= 60


# Hadar cannot serve components, and -v lists every option, ours too.
SERVED = [c for c in INVOCATIONS if c.words[1:2] != (":",) and "-v" not in c.words]


def described(call: Invocation) -> Sequence[str]:
    """Return the options of ours that go with a call."""
    if any(word.endswith("N2") for word in call.words[:1]):
        return (*OWN, "--hadar-gang=1x2")
    return (*OWN, "--hadar-gang=1") if of_tasks(call) else OWN


def movable(call: Invocation) -> Sequence[str]:
    """Return the same for a job that may be moved."""
    return (*described(call), "--hadar-checkpoint=yes")


def of_tasks(call: Invocation) -> bool:
    """Return whether how many GPUs it asks for depends on its tasks."""
    return any(word.startswith(("--gpus-per-task", "--gpus-per-socket")) for word in call.words)


def asks_for_gpus(call: Invocation) -> bool:
    """Return whether sbatch's own options ask for GPUs."""
    words = (*call.words, *call.environment)
    return any(word.startswith(("-G", "--gpus", "--gres=", "SBATCH_GPUS")) for word in words)


def is_left(call: Invocation) -> bool:
    """Return whether the user has chosen the place."""
    places = ("-w", "--exclude", "-C", "-F", "--reservation=no-such")
    return any(word in places for word in call.words)


def comment_of(call: Invocation) -> str:
    """Return the user's own comment, the last one given."""
    last = ""
    for word, following in pairwise((*call.words, "")):
        if word.startswith("--comment"):
            last = word.removeprefix("--comment=") if "=" in word else following
    return last


def check(call: Invocation, ours: Result, differences: Differences, *when: str) -> Differences:
    """Return what is not the same and is not documented; fail if the description is wrong."""
    if is_left(call) or not ours.components:
        return {name: what for name, what in differences.items() if name != "notes"}
    if "Requested node configuration is not available" in str(differences.get("stderr")):
        return {}  # of a job that is held Slurm asks that only when it is released
    assert len(ours.components) == 1
    kinds = [*when, *([] if asks_for_gpus(call) else ["no GPUs asked for"])]
    description = decode(str(differences["Comment"][1]))
    assert description is not None
    assert (description.steps, description.comment) == (100, comment_of(call))
    is_users = any(word.startswith("-H") for word in call.words[:1])
    assert description.is_held == ("held" in when and not is_users)
    expected = documented(*kinds) | {"notes"}
    return {name: what for name, what in differences.items() if name not in expected}


def wrong_in(
    found: Sequence[tuple[Invocation, Result, Differences]], *when: str
) -> list[tuple[tuple[str, ...], Differences]]:
    """Return the calls with differences that are not documented."""
    checked = [(call.words, check(call, ours, more, *when)) for call, ours, more in found]
    return [(words, more) for words, more in checked if more]


def test_jobs_of_hadars_differ_where_the_page_says(place: Site) -> None:
    """Held where hadard is alive."""
    place.vouch()
    assert wrong_in(compared(place, SERVED, described), "always", "held") == []


def test_jobs_that_may_be_moved_differ_where_the_page_says(place: Site) -> None:
    """They are requeued, and append to their output."""
    place.vouch()
    found = compared(place, SERVED[::4], movable)
    assert wrong_in(found, "always", "held", "movable") == []


def test_without_hadard_jobs_are_described_and_no_more(place: Site) -> None:
    """They start as plain ones do."""
    assert wrong_in(compared(place, SERVED[::3], described), "always") == []


def test_lines_in_a_script_from_standard_input_are_heeded(place: Site) -> None:
    """And the script that Slurm gets is the same to the byte."""
    place.vouch()
    lines = "".join(f"#HADAR {word}\n" for word in OWN)
    script = SCRIPT.replace("# a comment\n", lines)
    calls = [Invocation(words, stdin=script) for words in ((), ("/dev/stdin", "x"))]
    found = compared(place, calls)
    assert {ours.script.decode() for _, ours, _ in found} == {script}
    assert wrong_in(found, "always", "held") == []
    for words in (["--no-hadar"], ["--no-hadar", "--hadar-gang=99"]):
        call = Invocation(("-J", "plain"), stdin=script)
        theirs, ours = results(
            place,
            [
                submit(place, ["sbatch"], call),
                submit(place, [*HADAR_SBATCH, *words], call),
            ],
        )
        assert ours.differs_from(theirs) == {}


def test_a_heterogeneous_job_is_refused_by_name(place: Site) -> None:
    """On the command line or by a line of the script; nothing is submitted."""
    place.vouch()
    before = place.queue().keys()
    script = place.script("het", "#SBATCH -N1", "#SBATCH hetjob", "#SBATCH -N2", "true")
    for words in (["-N1", ":", *OWN, "-N2", "job.sh"], [*OWN, script]):
        done = place.hadar_sbatch(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "':' or hetjob is given: Hadar cannot place" in done.stderr
    assert place.queue().keys() == before


def test_json_names_the_job(place: Site) -> None:
    """As sbatch would have, and whether it waits for hadard."""
    place.vouch()
    for words in ([], ["--parsable"], ["-HN1"]):
        done = place.hadar_sbatch("--hadar-json", *OWN, *words, "--wrap=true")
        told = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (0, "")
        assert place.queue()[JobId(told["job"])].is_held_by_user
        assert (told["is_held"], told["cluster"]) == ("-HN1" not in words, None)
    done = place.hadar_sbatch("--hadar-json", *OWN, "--mem=lots", "--wrap=true")
    assert (done.returncode, done.stdout) == (255, "")
    assert "Invalid --mem" in done.stderr


def test_a_dry_run_shows_the_call_that_would_be_made(place: Site) -> None:
    """Pasted into a shell, it submits the job; by itself it submits none."""
    place.vouch()
    before = place.queue().keys()
    words = [*OWN, "-J", HOSTILE, f"dir/{HOSTILE}", HOSTILE]
    done = place.hadar_sbatch("--hadar-dry-run", *words)
    assert (done.returncode, done.stderr) == (0, "")
    call, _, table = done.stdout.partition("\n\n")
    assert place.queue().keys() == before
    assert [line.split()[:2] for line in table.splitlines()[1:4]] == [
        ["k80", "6"],
        ["p100", "8"],
        ["v100", "10"],
    ]
    pasted = submit(place, ["bash", "-c", call], Invocation(()))
    typed = submit(place, HADAR_SBATCH, Invocation(tuple(words)))
    assert pasted.status == 0
    one, other = results(place, [pasted, typed])
    assert one.differs_from(other).keys() <= {
        "AllocNode:Sid",
        "SHLVL",
        "_",
        "SLURM_SUBMIT_DIR",
        "OLDPWD",
        "PWD",
    }
