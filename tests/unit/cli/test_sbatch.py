"""hadar-sbatch as a program, with an sbatch and a sinfo of our own on PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hadar_slurm.slurm.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.slurm.metadata import decode

OWN = ["--hadar-model=A3C", "--hadar-steps=100"]
NOT_AT_WORK = "hadar-sbatch: hadard is not at work here: submitted to plain Slurm, unheld\n"

# Prints what it was called with, reads what its last word names or standard input, ends as told.
SBATCH = """
import json, os, sys
last = sys.argv[-1]
text = open(last).read() if os.path.exists(last) else sys.stdin.read()
spool = os.environ.get("HADAR_SPOOL")
print(json.dumps({"argv": sys.argv[1:], "script": text, "spool": spool}))
print("sbatch: a word of its own", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS_OF_SBATCH", "0")))
"""
SINFO = """
import os, sys
print(os.environ["GPUS"])
sys.exit(int(os.environ.get("STATUS_OF_SINFO", "0")))
"""


@dataclass
class Site:
    """A directory with commands, a place for the heartbeat, and what a run of ours gives."""

    root: Path

    def command(self, name: str, text: str) -> None:
        """Put a Python program on PATH."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        path.chmod(0o755)

    def beat(self, *, good_for_s: float = 600.0, partitions: tuple[str, ...] | None = None) -> None:
        """Leave a sign of life."""
        until_s = time.time() + good_for_s
        write_heartbeat(self.root, Heartbeat(1, "cluster", until_s, "/spool/hadar", partitions))

    def run(
        self, *words: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run hadar-sbatch in this directory."""
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SBATCH_", "SLURM_", "HADAR_", "COV_"))
        }
        return subprocess.run(
            [sys.executable, "-m", "hadar_slurm.cli.sbatch", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=self.root,
            env={
                **plain,
                "PATH": str(self.root / "bin"),
                "HADAR_RUN_DIR": str(self.root),
                "GPUS": "n1|gpu:V100:4(S:0-1)\nn2|gpu:K80:2",
                **environment,
            },
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.command("sbatch", SBATCH)
    site.command("sinfo", SINFO)
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho train\n", encoding="utf-8")
    return site


def call_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what sbatch was called with; it must have been."""
    assert done.stdout, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    return call


def notes_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return what we said on standard error, without sbatch's own words."""
    return done.stderr.replace("sbatch: a word of its own\n", "")


def test_a_job_is_held_where_hadard_is_at_work(site: Site) -> None:
    """Described, held, told where to report, and not a word of ours on the terminal."""
    site.beat()
    done = site.run("-p", "gpu", *OWN, "job.sh", "--lr=1")
    call = call_of(done)
    comment, *rest = call["argv"]
    assert rest == ["--hold", "--gpus=1", "-p", "gpu", "job.sh", "--lr=1"]
    description = decode(comment.removeprefix("--comment="))
    assert description is not None
    assert (description.workload, description.steps) == ("A3C", 100)
    assert call["spool"] == "/spool/hadar"
    assert (done.returncode, notes_of(done)) == (0, "")


def test_a_job_is_not_held_where_nobody_would_place_it(site: Site) -> None:
    """One note, and the job is described all the same, for when hadard comes back."""
    done = site.run(*OWN, "job.sh")
    assert "--hold" not in call_of(done)["argv"]
    assert call_of(done)["argv"][0].startswith('--comment={"hadar":1')
    assert (done.returncode, notes_of(done)) == (0, NOT_AT_WORK)


def test_a_sign_of_life_that_is_too_old_counts_for_nothing(site: Site) -> None:
    """A daemon that died left its heartbeat behind."""
    site.beat(good_for_s=-1.0)
    done = site.run(*OWN, "job.sh")
    assert "--hold" not in call_of(done)["argv"]
    assert notes_of(done) == NOT_AT_WORK


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', "\x00", '{"partitions": 5}'])
def test_a_sign_of_life_that_cannot_be_read_counts_for_nothing(site: Site, text: str) -> None:
    """A job is held only when it is sure to be released."""
    (site.root / "heartbeat.json").write_text(text, encoding="utf-8")
    assert notes_of(site.run(*OWN, "job.sh")) == NOT_AT_WORK


@pytest.mark.parametrize(
    ("words", "environment", "script", "is_held"),
    [
        (["-p", "gpu"], {}, "", True),
        (["--partition=gpu-long"], {}, "", True),
        (["--part", "gpu"], {}, "", True),
        (["-p", "cpu"], {}, "", False),
        (["-p", "gpu,cpu"], {}, "", False),
        ([], {}, "", False),
        ([], {"SBATCH_PARTITION": "gpu"}, "", True),
        (["-p", "cpu"], {"SBATCH_PARTITION": "gpu"}, "", False),
        ([], {}, "#SBATCH -p gpu", True),
        (["-p", "cpu"], {}, "#SBATCH -p gpu", False),
        # sbatch's environment outweighs the script.
        ([], {"SBATCH_PARTITION": "cpu"}, "#SBATCH -p gpu", False),
    ],
)
def test_a_job_is_held_only_in_partitions_that_hadard_serves(
    site: Site, words: list[str], environment: dict[str, str], script: str, *, is_held: bool
) -> None:
    """The partition is the one that sbatch will take; one that is not known is not served."""
    site.beat(partitions=("gpu", "gpu-long"))
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{script}\necho train\n", encoding="utf-8")
    done = site.run(*words, *OWN, "job.sh", **environment)
    assert ("--hold" in call_of(done)["argv"]) == is_held
    assert notes_of(done) == ("" if is_held else NOT_AT_WORK)


def test_sbatchs_status_and_words_are_passed_on(site: Site) -> None:
    """Scripts that look at sbatch's status and output find what they know."""
    site.beat()
    done = site.run(*OWN, "job.sh", STATUS_OF_SBATCH="7")
    assert done.returncode == 7
    assert done.stderr == "sbatch: a word of its own\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hadar-steps=none", "--hadar-model=A3C"], "--hadar-steps 'none': expected a whole"),
        (["--hadar-model=A3C"], "--hadar-steps is missing"),
        (["--hadar-stepz=1"], "unknown option --hadar-stepz"),
        (["--hadar-steps=1", "--hadar-model=GPT"], "'GPT' is not in the throughput table"),
        ([*OWN, "--hadar-gang=8"], "no nodes of this cluster can hold the gang 8x1, 4x2"),
        (["--hadar-steps=1", "--hadar-throughput=a100=1"], "GPU type 'a100' is not in this clus"),
    ],
)
def test_a_fault_is_one_line_and_nothing_is_submitted(
    site: Site, words: list[str], said: str
) -> None:
    """Status 2, no output, no job."""
    site.beat()
    done = site.run(*words, "job.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hadar-sbatch: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["-w", "n1"], ["--nodelist=n1"], ["--exclude", "n2"], ["--reservation=r"]]
)
def test_a_place_that_the_user_chose_is_left_to_slurm(site: Site, words: list[str]) -> None:
    """hadard could only disagree with it: a plain job, with a note."""
    site.beat()
    done = site.run(*words, *OWN, "job.sh")
    assert call_of(done)["argv"] == [*words, "job.sh"]
    assert notes_of(done).endswith("is given: left to Slurm, not placed by Hadar\n")


def test_without_options_of_ours_it_is_sbatch(site: Site) -> None:
    """Nothing is added and nothing is said."""
    site.beat()
    done = site.run("-HN2", "--comment=mine", "job.sh", "--hadar-steps=1")
    assert call_of(done)["argv"] == ["-HN2", "--comment=mine", "job.sh", "--hadar-steps=1"]
    assert call_of(done)["spool"] is None
    assert notes_of(done) == ""


def test_the_script_may_come_on_standard_input(site: Site) -> None:
    """It is sbatch that reads it, to the last byte."""
    site.beat()
    script = "#!/bin/sh\necho train\n"
    for words in ([], ["/dev/stdin"]):
        assert call_of(site.run(*OWN, *words, stdin=script))["script"] == script


def test_words_arrive_as_they_were_given(site: Site) -> None:
    """No shell stands between us and sbatch."""
    evil = "a b\"c'd\\e\n$(touch x) `y` ; | & é🦀"
    argv = call_of(site.run(*OWN, f"--job-name={evil}", "job.sh", evil))["argv"]
    assert argv[-3:] == [f"--job-name={evil}", "job.sh", evil]


def test_a_slurm_that_does_not_answer_is_left_to_sbatch(site: Site) -> None:
    """Without an inventory nothing can be checked, and sbatch says what is wrong."""
    site.beat()
    done = site.run(*OWN, "--hadar-gang=64", "job.sh", STATUS_OF_SINFO="1")
    assert "--gpus=64" in call_of(done)["argv"]


def test_without_sbatch_there_is_one_line(site: Site) -> None:
    """A machine without Slurm is told so, with the shell's status for a missing command."""
    (site.root / "bin" / "sbatch").unlink()
    done = site.run(*OWN, "job.sh")
    assert done.returncode == 127
    assert done.stderr.splitlines()[-1] == (
        "hadar-sbatch: cannot run sbatch: No such file or directory"
    )


def test_help_lists_every_option(site: Site) -> None:
    """Nothing is submitted."""
    done = site.run("--hadar-help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: hadar-sbatch")
    for name in ("model", "batch-size", "throughput", "steps", "gang", "checkpoint"):
        assert f"--hadar-{name}" in done.stdout


def test_it_starts_with_the_standard_library_alone() -> None:
    """Every submission would pay for a library, on login nodes that are busy enough."""
    code = (
        "import sys; before = set(sys.modules); import hadar_slurm.cli.sbatch\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names)
    assert foreign == {"hadar_slurm"}
