"""One scontrol makes many changes, and each change gets its own error, and no other's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from subprocess import CompletedProcess, TimeoutExpired

import pytest
from fakes.fake_slurm import Asked, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.modes import Partitions
from hadar_slurm.errors import SlurmRefused, SlurmUnavailable
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import (
    Hold,
    Prefer,
    Release,
    SetRequest,
    SignalCheckpoint,
    Update,
)

ONE, TWO, THREE = JobId("1"), JobId("2"), JobId("3")
Answer = Callable[[Sequence[str], str], tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class Scripted(Runner):
    """Answers commands by a function, and records them."""

    answer: Answer = lambda argv, stdin: (0, "", "")
    seen: list[tuple[list[str], str]] = field(default_factory=list)

    def _done(self, argv: Sequence[str], stdin: str) -> CompletedProcess[str]:
        self.seen.append((list(argv), stdin))
        return CompletedProcess(argv, *self.answer(argv, stdin))


def marks(stdin: str) -> list[str]:
    """Return the words that scontrol will report as invalid."""
    return [line for line in stdin.splitlines() if line.startswith("mark")]


def complaining(*complaints: str, always: str = "") -> Answer:
    """Return an answer of scontrol with these errors of the commands, behind one of its own."""

    def answer(argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        pairs = zip((always, *complaints), marks(stdin), strict=True)
        return 1, "", "".join(f"{said}invalid keyword: {mark}\n" for said, mark in pairs)

    return answer


def test_complaints_belong_to_the_command_before_the_mark() -> None:
    """Several error lines may belong to one command, and none to others."""
    slurm = CommandLine(
        Scripted(
            answer=complaining(
                "", "Invalid job id specified for job 2\nslurm_suspend error: No error\n", ""
            )
        )
    )
    first, second, third = slurm.change([Hold(ONE), Hold(TWO), Release(THREE)])
    assert (first, third) == (None, None)
    assert isinstance(second, SlurmRefused)
    assert str(second) == (
        "scontrol uhold 2: Invalid job id specified for job 2; slurm_suspend error: No error"
    )


WARNINGS = [
    "scontrol: error: Ignoring ControlMachine since SlurmctldHost is set.",
    "scontrol: error: NodeNames=n1 CPUs=1 match no Sockets. Resetting CPUs.",
    "scontrol: error: MemSpecLimit: not supported here for job 17",
    "scontrol: warning: Ignoring file-less GPU gpu:1",
    "nss_ldap: failed to bind to LDAP server: Connection refused",
    "scontrol: error: Invalid value of something in slurm.conf",
]


@pytest.mark.parametrize("said", WARNINGS)
def test_what_scontrol_always_says_is_no_refusal(said: str) -> None:
    """A warning at scontrol's start belongs to no change, even if it comes again with each."""
    for again in ("", said + "\n"):
        answer = complaining(again, again, again, always=said + "\n")
        slurm = CommandLine(Scripted(answer=answer))
        assert slurm.change([Hold(ONE), Release(TWO), Hold(THREE)]) == [None] * 3


@pytest.mark.parametrize("said", WARNINGS[:4])
def test_a_warning_that_comes_late_is_no_refusal(said: str) -> None:
    """Slurm's plug-ins are loaded, and warn, with the first command that needs them."""
    refused = "Access/permission denied for job 2\n"
    slurm = CommandLine(Scripted(answer=complaining(said + "\n", said + "\n" + refused)))
    first, second = slurm.change([Hold(ONE), Hold(TWO)])
    assert first is None
    assert isinstance(second, SlurmRefused)


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("Invalid node name specified for job 1\n", "1"),
        ("3_1: Job is no longer pending execution\n", "3_1"),
        ("3_[1]: Invalid job id specified\n", "3_1"),
        ("3_2: Job is no longer pending execution\n", "3"),
        ("slurm_suspend error:Invalid job id specified\n", "1"),
        ("scontrol: error: Invalid job ID 1\n", "1"),
        ("Update of this parameter is not supported: X=\nRequest aborted\n", "1"),
        ("slurm_suspend error: No error\n", "1"),
        ("invalid nice value, must be between 1 and 2\n", "1"),
    ],
)
def test_a_refusal_names_its_job_or_has_a_form_of_scontrols(said: str, job: str) -> None:
    """It stays a refusal behind a warning."""
    for noise in ("", WARNINGS[0] + "\n"):
        slurm = CommandLine(Scripted(answer=complaining(noise + said, always=noise)))
        [fault] = slurm.change([Hold(JobId(job))])
        assert isinstance(fault, SlurmRefused)
        assert str(fault).endswith("; ".join(said.split("\n")).strip("; "))


@pytest.mark.parametrize("said", ["3_[2]: No\n", "13_1: No\n", "Refused for job 3_11\n"])
def test_what_names_another_job_is_no_refusal(said: str) -> None:
    """Such as another task of the array."""
    slurm = CommandLine(Scripted(answer=complaining(said)))
    assert slurm.change([Hold(JobId("3_1"))]) == [None]


def test_each_batch_has_one_process_and_marks_that_nobody_can_foresee() -> None:
    """With predictable marks, a user could forge a mark in a job's texts."""
    runner = Scripted(answer=complaining("", ""))
    slurm = CommandLine(runner)
    slurm.change([Hold(ONE), Release(TWO)])
    slurm.change([Hold(ONE), Release(TWO)])
    (argv, first), (_, second) = runner.seen
    assert argv == ["scontrol"]
    assert first.splitlines()[1::2] == ["uhold 1", "release 2", "quit"]
    assert marks(first)[0] != marks(second)[0]
    assert len(marks(first)[0]) > 16


def test_signals_and_changes_are_made_in_their_order() -> None:
    """Successive changes of the same kind share one process."""
    runner = Scripted(answer=lambda argv, stdin: (0, "", stdin))
    CommandLine(runner).change(
        [SignalCheckpoint(ONE), SignalCheckpoint(TWO), Hold(ONE), SignalCheckpoint(THREE)]
    )
    assert [argv for argv, _ in runner.seen] == [
        ["scancel", "--signal=USR1", "--batch", "1", "2"],
        ["scontrol"],
        ["scancel", "--signal=USR1", "--batch", "3"],
    ]


def test_no_change_runs_no_command() -> None:
    """A round without changes sends nothing to slurmctld."""
    runner = Scripted()
    assert CommandLine(runner).change([]) == []
    assert runner.seen == []


@pytest.mark.parametrize(
    "said", ["Unable to contact slurm controller (connect failure)\n", "Connection refused\n"]
)
def test_a_slurm_out_of_reach_is_no_refusal(said: str) -> None:
    """A connection failure is SlurmUnavailable for the command that it occurred in."""
    slurm = CommandLine(Scripted(answer=complaining("", said)))
    first, second = slurm.change([Hold(ONE), Hold(TWO)])
    assert first is None
    assert isinstance(second, SlurmUnavailable)


def test_a_scontrol_that_ends_early_leaves_the_rest_open() -> None:
    """The commands without an answer may or may not have been carried out."""

    def answer(argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        return 1, "", f"invalid keyword: {marks(stdin)[0]}\n" * 2 + "Invalid job id"

    faults = CommandLine(Scripted(answer=answer)).change([Hold(ONE), Hold(TWO), Hold(THREE)])
    assert faults[0] is None
    assert [type(fault) for fault in faults[1:]] == [SlurmUnavailable] * 2


@pytest.mark.parametrize(
    "change",
    [
        Prefer(ONE, "v100 k80"),
        Prefer(ONE, "v100\nrelease 2"),
        Prefer(ONE, "$(harm)"),
        Hold(JobId("1\nrelease 2")),
        SetRequest(ONE, Request(per_node='gpu:"2"')),
    ],
    ids=str,
)
def test_what_scontrol_would_take_apart_never_reaches_it(change: Update) -> None:
    """The whole batch is refused: hadard itself never uses such words."""
    runner = Scripted()
    faults = CommandLine(runner).change([Hold(TWO), change])
    assert [type(fault) for fault in faults] == [SlurmRefused] * 2
    assert runner.seen == []


def test_jobs_that_a_signal_did_not_reach_are_told_by_name() -> None:
    """The error is assigned to the jobs that scancel names; the others count as signalled."""
    said = (
        "scancel: error: Kill job error on job id 1: Invalid job id specified\n"
        "scancel: error: Kill job error on job id 3_4: Job/step already completing or completed\n"
    )
    slurm = CommandLine(Scripted(answer=lambda argv, stdin: (1, "", said)))
    first, second, third = slurm.change([SignalCheckpoint(JobId(j)) for j in ("1", "2", "3_4")])
    assert str(first) == "scancel 1: Invalid job id specified"
    assert second is None
    assert str(third) == "scancel 3_4: Job/step already completing or completed"


def test_a_scancel_that_blames_nobody_has_reached_nobody_for_sure() -> None:
    """If scancel names no job, its error is assigned to all of them."""
    slurm = CommandLine(Scripted(answer=lambda argv, stdin: (1, "", "scancel: no such luck")))
    faults = slurm.change([SignalCheckpoint(ONE), SignalCheckpoint(TWO)])
    assert [type(fault) for fault in faults] == [SlurmRefused] * 2


@dataclass(frozen=True, slots=True)
class Slow(Runner):
    """A runner whose commands all time out; it records their time limits."""

    limits: list[float] = field(default_factory=list)

    def _done(self, argv: Sequence[str], stdin: str) -> CompletedProcess[str]:
        self.limits.append(self.timeout_s)
        error = TimeoutExpired(list(argv), self.timeout_s)
        raise SlurmUnavailable(f"{argv[0]} gave no answer") from error


def test_signals_are_not_waited_for() -> None:
    """A timeout of scancel is no error: it retries for a minute if a job has left its nodes."""
    runner = Slow(timeout_s=30.0)
    assert CommandLine(runner).change([SignalCheckpoint(ONE), SignalCheckpoint(TWO)]) == [
        None,
        None,
    ]
    assert runner.limits[0] < 10
    [fault] = CommandLine(runner).change([Hold(ONE)])
    assert isinstance(fault, SlurmUnavailable)
    assert runner.limits[1] == 30.0


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 26.05.5\n", (26, 5)), ("what?\n", (0, 0))],
)
def test_the_version_is_that_of_the_commands(text: str, version: tuple[int, int]) -> None:
    """Versions before 24.11 and unknown ones keep GPU types."""
    slurm = CommandLine(Scripted(answer=lambda argv, stdin: (0, text, "")))
    assert slurm.version == version
    assert slurm.abilities.keeps_types is (version < (24, 11))


def test_which_slurm_it_is() -> None:
    """A cluster is identified by its name and the address of slurmctld; both may be missing."""
    text = (
        "Configuration data as of 1\nClusterName             = hpc\n"
        "SlurmctldHost[0]        = ctl(10.0.0.1)\nSlurmctldHost[1]        = two\n"
        "SlurmctldPort           = 6817\nTaskProlog              = a=b\n"
    )
    told = CommandLine(Scripted(answer=lambda argv, stdin: (0, text, "")))
    assert told.site() == Site("hpc", "ctl(10.0.0.1):6817")
    silent = CommandLine(Scripted(answer=lambda argv, stdin: (0, "", "")))
    assert silent.site() == Site("", ":")
    assert not told.site().hides_jobs
    for words in ("jobs", "accounts,jobs,usage"):
        answer = (0, f"PrivateData             = {words}\n", "")
        slurm = CommandLine(Scripted(answer=lambda argv, stdin, answer=answer: answer))
        assert slurm.site().hides_jobs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("other|\nmain*|\n", Partitions(("main", "other"), "main")),
        ("other|\n", Partitions(("other",))),
        ("Done\n***\n\n| a = b | *\nmain*|\n\x1b[0m\n", Partitions(("main",), "main")),
        ("", Partitions(())),
    ],
)
def test_the_partitions(text: str, told: Partitions) -> None:
    """The default partition is the one that sinfo marks; there may be none."""
    slurm = CommandLine(Scripted(answer=lambda argv, stdin: (0, text, "")))
    assert slurm.partitions() == told


RESERVATION = (
    "ReservationName=repair StartTime=2026-11-24T16:52:32 EndTime=2026-11-24T17:52:32 "
    "Duration=01:00:00 Nodes={} NodeCnt=1 CoreCnt=16 Features=(null) PartitionName=(null) "
    "Flags=MAINT,SPEC_NODES TRES=cpu=16 Users=root Groups=(null) State=INACTIVE\n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("No reservations in the system\n", set()),
        (RESERVATION.format("n[1-2]") + RESERVATION.format("(null)"), {"n1", "n2"}),
        (RESERVATION.format("n1") + RESERVATION.format("gpu7,n1"), {"n1", "gpu7"}),
    ],
)
def test_the_nodes_of_all_reservations(text: str, told: set[str]) -> None:
    slurm = CommandLine(Scripted(answer=lambda argv, stdin: (0, text, "")))
    assert slurm.reserved_nodes() == told


def test_without_accounts_there_are_no_shares() -> None:
    """Without accounting the fair shares are empty, without an error."""
    slurm = FakeSlurm("v100:4")
    assert CommandLine(FakeRunner(slurm=slurm)).fair_shares() == {}
    slurm.shares = {("physics", "alice"): 0.25, ("physics", "bob"): 1.0}
    assert CommandLine(FakeRunner(slurm=slurm)).fair_shares() == slurm.shares


def test_a_cluster_without_jobs_is_not_asked_for_them() -> None:
    """Two commands read the whole cluster, or three if there are jobs."""
    slurm = FakeSlurm("v100:4")
    asked: list[str] = []

    def listen(argv: Sequence[str]) -> None:
        asked.append(re.split(" -[oO]", " ".join(argv))[0])

    reader = CommandLine(FakeRunner(slurm=slurm, before=[listen]))
    reader.read()
    queue, nodes = "squeue -a -h -r -t all", "scontrol -a show node -d"
    # The version is read once.
    assert sorted(asked) == ["scontrol --version", nodes, queue]
    slurm.submit(Asked(per_job=(("", 2),)))
    slurm.advance(1.0)
    assert len(reader.read().gangs) == 1
    assert asked[3:] == [queue, nodes, "scontrol -a show job -d"]


@pytest.mark.parametrize("gone", [(), ("99",), ("99", "98_1")])
def test_a_few_jobs_are_read_without_the_others(gone: Sequence[str]) -> None:
    """Two commands ask for them alone; what Slurm does not know any more is left out."""
    slurm, asked = FakeSlurm("v100:4"), list[str]()
    slurm.submit(Asked(per_job=(("", 1),)), tasks=(0, 1, 2), hold="user")
    jobs = [JobId(job.key) for job in slurm.jobs][1:]
    for _ in range(20):
        slurm.submit(Asked(per_job=(("", 1),)), hold="user")
    slurm.split(slurm.jobs[1])
    lone = JobId(slurm.jobs[-1].key)

    def listen(argv: Sequence[str]) -> None:
        asked.append(" ".join(argv))

    reader = CommandLine(FakeRunner(slurm=slurm, before=[listen]))
    for some in ([lone], jobs, [lone, *jobs]):
        whole = reader.read()
        asked.clear()
        part = reader.read_jobs([*some, *map(JobId, gone)])
        assert part.queue == {job: whole.queue[job] for job in some}
        assert part.nice == {job: whole.nice[job] for job in some}
        assert sum(ask.startswith("squeue") for ask in asked) == 1
        shown = [ask.split()[-1] for ask in asked if "show job" in ask]
        assert {slurm.find(job)[0].number for job in shown} == {
            slurm.find(job)[0].number for job in some
        }


def test_a_job_that_slurm_has_forgotten_is_no_failed_reading() -> None:
    """squeue refuses a single number that it does not know."""
    slurm = FakeSlurm("v100:4")
    reader = CommandLine(FakeRunner(slurm=slurm))
    assert reader.read_jobs([JobId("99")]).queue == {}
    assert reader.read_jobs([JobId("98_1"), JobId("98_2")]).queue == {}


def test_many_jobs_are_read_with_all_others() -> None:
    """One by one they would take seconds."""
    slurm, asked = FakeSlurm("v100:4"), list[str]()
    for _ in range(301):
        slurm.submit(Asked(per_job=(("", 1),)), hold="user")

    def listen(argv: Sequence[str]) -> None:
        asked.append(argv[0])

    reader = CommandLine(FakeRunner(slurm=slurm, before=[listen]))
    part = reader.read_jobs([JobId(job.key) for job in slurm.jobs])
    assert len(part.queue) == len(part.nice) == 301
    assert sorted(asked) == ["scontrol", "scontrol", "squeue"]
