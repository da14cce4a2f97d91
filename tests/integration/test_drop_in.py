"""A job is the same with sbatch and hadar-sbatch, except for what docs/hadar-sbatch.md lists."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from integration.invocations import HOSTILE, INVOCATIONS, SCRIPT, Invocation
from integration.site import HADAR_SBATCH, Site
from integration.submissions import Differences, Result, results, submit

from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.description import decode

pytestmark = pytest.mark.slurm

PAGE = Path(__file__).parents[2] / "docs" / "hadar-sbatch.md"
OWN = ("--hadar-throughput=v100=20,p100=20,k80=20", "--hadar-steps=100")
PLAIN = "hadar-sbatch: plain Slurm places this job: "


@pytest.fixture
def place(site: Site) -> Iterator[Site]:
    """A site where no job starts, with the files that the command lines name."""
    for name in ("dir", "sub", "bin"):
        (site.directory / name).mkdir()
    for path in ("job.sh", f"dir/{HOSTILE}", "sub/job.sh", "bin/only-on-path"):
        (site.directory / path).write_text(SCRIPT.replace("from-script", f"in-{path[:3]}"))
    (site.directory / "nodes.txt").write_text("n1\nn2\n")
    (site.directory / "env.bin").write_bytes(b"A=1\0B=two words\0")
    site.runner.run(["scontrol", "update", "PartitionName=main", "State=DOWN"])
    yield site
    site.runner.run(["scontrol", "update", "PartitionName=main", "State=UP"])


def compared(
    site: Site,
    calls: Sequence[Invocation],
    own: Callable[[Invocation], Sequence[str]] | None = None,
    plain: Sequence[str] = (),
) -> list[tuple[Invocation, Result, Differences]]:
    """Submit each call by sbatch and hadar-sbatch; return the latter's result and the differences.

    `own` returns additional --hadar-... options for a call. If `sbatch` is hadar-sbatch, `plain` is
    Slurm's sbatch.
    """
    first = site.submit("-H", "--wrap=true", command=plain or ["sbatch"])
    if own and " 24.11." in site.runner.run(["scontrol", "--version"]):
        # slurmctld 24.11.5 ends by a segmentation fault when a job asks for both (docs/slurm.md).
        calls = [call for call in calls if "--spread-job" not in call.words]
    calls = [
        replace(call, words=tuple(word.replace("{first}", first) for word in call.words))
        for call in calls
    ]
    ours = ["sbatch"] if plain else HADAR_SBATCH
    commands = [
        *(plain or ["sbatch"] for _ in calls),
        *([*ours, *(own(call) if own else ())] for call in calls),
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


def check_line(call: Invocation, differences: Differences) -> Differences:
    """Return the differences without hadar-sbatch's note, which must be there unless silenced."""
    _, lines = differences.pop("notes", ([], []))
    assert isinstance(lines, list)
    is_quiet = not {"-Q", "--parsable"}.isdisjoint(call.words)
    assert len(lines) == (0 if is_quiet else 1), (call, lines)
    assert all(line.startswith(PLAIN) for line in lines), (call, lines)
    return differences


def test_without_our_options_nothing_differs(place: Site) -> None:
    """Without --hadar-... options job, script, environment, both streams and status are the same.

    hadard is alive. Only a note on standard error differs, unless --quiet or --parsable is given.
    """
    place.vouch()
    found = compared(place, INVOCATIONS)
    more = [(call, check_line(call, differences)) for call, _, differences in found]
    assert [(call, differences) for call, differences in more if differences] == []
    assert sum(bool(ours.components) for _, ours, _ in found) >= 60


@pytest.mark.parametrize("how", ["link", "wrapper"])
def test_in_sbatch_s_place_nothing_differs(place: Site, how: str) -> None:
    """The same holds for a link named sbatch, and for a wrapper script of that name."""
    place.vouch()
    command = Path(sys.executable).with_name("hadar-sbatch")
    path = place.directory / "first" / "sbatch"
    path.parent.mkdir()
    if how == "link":
        path.symlink_to(command)
    else:
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
    place.environment["PATH"] = f"{path.parent}{os.pathsep}{place.environment['PATH']}"
    # As in a user's shell; the wrapper's sh would correct a wrong one.
    place.environment["PWD"] = str(place.directory)
    real = shutil.which("sbatch")
    assert real is not None
    calls = [call for call in INVOCATIONS[::2] if "PATH" not in call.environment]
    found = compared(place, calls, plain=[real])
    more = [(call, check_line(call, differences)) for call, _, differences in found]
    assert [(call, differences) for call, differences in more if differences] == []


# Hadar cannot place heterogeneous jobs, and -v lists every option, also Hadar's.
SERVED = [c for c in INVOCATIONS if c.words[1:2] != (":",) and "-v" not in c.words]


def described(call: Invocation) -> Sequence[str]:
    """Return Hadar's options for a call."""
    if any(word.endswith("N2") for word in call.words[:1]):
        return (*OWN, "--hadar-gang=1x2")
    return (*OWN, "--hadar-gang=1") if of_tasks(call) else OWN


def movable(call: Invocation) -> Sequence[str]:
    """Return Hadar's options for a call whose job may be migrated."""
    return (*described(call), "--hadar-checkpoint=yes")


def of_tasks(call: Invocation) -> bool:
    """Return whether the number of requested GPUs depends on tasks or sockets."""
    return any(word.startswith(("--gpus-per-task", "--gpus-per-socket")) for word in call.words)


def asks_for_gpus(call: Invocation) -> bool:
    """Return whether sbatch's own options ask for GPUs."""
    words = (*call.words, *call.environment)
    return any(word.startswith(("-G", "--gpus", "--gres=", "SBATCH_GPUS")) for word in words)


def is_left(call: Invocation) -> bool:
    """Return whether the user restricts the nodes, so that plain Slurm places the job."""
    places = ("-w", "-F", "--reservation=no-such")
    return any(word in places for word in call.words)


def comment_of(call: Invocation) -> str:
    """Return the user's own comment, the last one given."""
    last = ""
    for word, following in pairwise((*call.words, "")):
        if word.startswith("--comment"):
            last = word.removeprefix("--comment=") if "=" in word else following
    return last


def check(call: Invocation, ours: Result, differences: Differences, *when: str) -> Differences:
    """Return the differences that are not documented; fail if the description is wrong."""
    if is_left(call) or not ours.components:
        if "Requested node configuration is not available" in str(differences.get("stderr")):
            assert "--ntasks-per-node=2" in call.words  # four tasks, and one node for one GPU
            return {}
        return {name: what for name, what in differences.items() if name != "notes"}
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
    """With hadard alive described jobs are held, and only documented fields differ."""
    place.vouch()
    assert wrong_in(compared(place, SERVED, described), "always", "held") == []


def test_jobs_that_may_be_moved_differ_where_the_page_says(place: Site) -> None:
    """Jobs that may be migrated differ only in the fields that are documented for them."""
    place.vouch()
    found = compared(place, SERVED[::4], movable)
    assert wrong_in(found, "always", "held", "movable") == []


def test_without_hadard_jobs_are_described_and_no_more(place: Site) -> None:
    """Without hadard described jobs are not held, and only documented fields differ."""
    assert wrong_in(compared(place, SERVED[::3], described), "always") == []


def test_lines_in_a_script_from_standard_input_are_heeded(place: Site) -> None:
    """#HADAR lines in a script from standard input apply, and Slurm gets the script unchanged."""
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
        assert check_line(call, ours.differs_from(theirs)) == {}


def test_a_heterogeneous_job_is_refused_by_name(place: Site) -> None:
    """A heterogeneous job with Hadar's options is refused, and nothing is submitted."""
    place.vouch()
    before = place.queue().keys()
    script = place.script("het", "#SBATCH -N1", "#SBATCH hetjob", "#SBATCH -N2", "true")
    for words in (["-N1", ":", *OWN, "-N2", "job.sh"], [*OWN, script]):
        done = place.hadar_sbatch(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "':' or hetjob is given: Hadar cannot place" in done.stderr
    assert place.queue().keys() == before


def test_json_names_the_job(place: Site) -> None:
    """--hadar-json prints the job id, and whether the job is held for hadard."""
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
    """A dry run submits nothing; its output, run in a shell, submits the same job."""
    place.vouch()
    before = place.queue().keys()
    words = [*OWN, "-J", HOSTILE, f"dir/{HOSTILE}", HOSTILE]
    done = place.hadar_sbatch("--hadar-dry-run", *words)
    assert done.returncode == 0
    assert done.stderr == "hadar-sbatch: hadard places this job (1 GPU of any type, 100 steps)\n"
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
        "notes",
    }
