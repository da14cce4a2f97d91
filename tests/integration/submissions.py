"""Submits jobs to a real Slurm and compares the results."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from integration.invocations import Invocation
from integration.site import LIMIT_S, Site, eventually

_JOB = re.compile(r"(?:^Submitted batch job |\A)(\d+)$", re.MULTILINE)
_TRIAL = re.compile(r"Job (\d+) to start")
# The expected start of a job depends on all jobs before it.
_START = re.compile(r"(?<=to start at )\S+")
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z/:]*)=")
_TIME = re.compile(r"(?<!\d)\d{10}(?!\d)")
# Without multifactor priorities, the priority of each new job is one less than that before.
_BASIC_PRIORITY = re.compile(r"(?<!\d)42949\d{5}(?!\d)")
# Fields that contain a job id, or may.
_IDS = frozenset(["JobId", "ArrayJobId", "HetJobId", "HetJobIdSet"])
_FILES = frozenset(["StdErr", "StdOut"])
# Fields that depend on when the scheduler last ran.
_CHANCE = frozenset(["AccrueTime", "LastSchedEval", "Scheduler"])
_UNDECIDED = frozenset(["BeginTime", "Dependency", "PartitionDown"])


def _is_now(time_s: int) -> bool:
    return abs(time_s - time.time()) < 86400


Differences = dict[str, tuple[object, object]]


@dataclass(frozen=True)
class Answer:
    """The answer to a submission: status, both streams, and the job id in them."""

    status: int
    stdout: str
    stderr: str
    job: str

    def neutral(self, text: str, *, names_job: bool = True) -> str:
        """Return a text without what differs between any two submissions."""
        text = _TIME.sub(lambda found: "NOW" if _is_now(int(found[0])) else found[0], text)
        for ahead in range(3 if self.job and names_job else 0):
            text = re.sub(rf"(?<!\d){int(self.job) + ahead}(?!\d)", f"JOB+{ahead}", text)
        return _START.sub("THEN", _BASIC_PRIORITY.sub("PRIORITY", text))


@dataclass(frozen=True)
class Result:
    """The result of a submission: sbatch's answer, and the job as Slurm shows and saves it."""

    answer: Answer
    components: tuple[Mapping[str, str], ...]
    script: bytes
    variables: Mapping[str, str]

    def facts(self) -> dict[str, object]:
        """Return by name all facts that should be equal for two submissions."""
        said = self.answer
        # Where no job can start, the expected start is a fixed time ahead: it changes each second.
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
        """Return the facts that differ, by name: the other's value and this one's."""
        here, there = self.facts(), other.facts()
        names = {*here, *there}
        return {
            name: (there.get(name), here.get(name))
            for name in sorted(names)
            if here.get(name) != there.get(name)
        }


def submit(site: Site, command: Sequence[str], call: Invocation) -> Answer:
    """Submit a job as a user would, and return the answer."""
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
    # Messages begin with the path by which the command was called.
    stderr = stderr.replace(f"{command[0]}: ", "sbatch: ")
    said = _JOB.search(stdout) or _TRIAL.search(stderr)
    return Answer(done.returncode, stdout, stderr, said[1] if said else "")


def results(site: Site, answers: Sequence[Answer]) -> list[Result]:
    """Return the submitted jobs as Slurm has them, once its scheduler has evaluated all."""
    jobs = site.cluster.runner()
    text = ""

    def is_settled() -> bool:
        nonlocal text
        text, before = jobs.run(["scontrol", "show", "job", "-o"]), text
        return text == before and " JobState=PENDING Reason=None " not in text

    # Slurm evaluates jobs beyond default_queue_depth once a minute.
    eventually(is_settled, "every job has a reason", 3 * LIMIT_S)
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        numbers = dict(re.findall(r"\b(JobId|ArrayJobId|HetJobId)=(\d+)", line))
        if "JobId" not in numbers:
            continue  # the rest of a line broken by the name of an earlier test's job
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
    if fields.get("Reason") in _UNDECIDED:
        # The partition is down. The reason that Slurm shows, and whether it shows the eligible
        # time, depend on when it has last evaluated the job.
        is_due = fields["Dependency"] == "(null)" and not fields["EligibleTime"].isdecimal()
        fields["Reason"] = "PartitionDown" if is_due else "LATER"
        if fields["EligibleTime"] == "Unknown":
            fields["EligibleTime"] = "NOW"
    return {key: value for key, value in fields.items() if key not in _CHANCE}
