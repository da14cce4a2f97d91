"""hadar-sbatch as a program, with a fake sbatch and a fake sinfo on PATH."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.login_node import SBATCH, SINFO, SQUEUE, Site, call_of

from hadar_slurm.built_from import version
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import TypeRecord, Work
from hadar_slurm.jobspec.constraint import fold_out
from hadar_slurm.jobspec.description import decode, digest
from hadar_slurm.state.failures import write_failures
from hadar_slurm.state.heartbeat import Heartbeat, LastRounds, write_heartbeat
from hadar_slurm.submit import trial
from hadar_slurm.submit.real_sbatch import RealSbatch

OWN = ["--hadar-model=A3C", "--hadar-steps=100"]
TAKEN = "hadar-sbatch: hadard places this job (1 GPU of any type, 100 steps)\n"


def left(why: str) -> str:
    """Return the line that is printed for a job that hadard does not place."""
    return f"hadar-sbatch: plain Slurm places this job: {why}\n"


def unseen(site: Site) -> str:
    """Return the line that is printed when hadard is not alive."""
    return left(f"hadard is not alive here (no fresh heartbeat in {site.root})")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.command("sbatch", SBATCH)
    site.command("sinfo", SINFO)
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho train\n", encoding="utf-8")
    return site


def notes_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the lines of hadar-sbatch on standard error, without those of sbatch."""
    return done.stderr.replace("sbatch: a word of its own\n", "")


def test_a_job_is_held_where_hadard_is_at_work(site: Site) -> None:
    """A managed job is described, held and given HADAR_SPOOL, and one line says so."""
    site.beat()
    done = site.run("-p", "gpu", *OWN, "job.sh", "--lr=1")
    call = call_of(done)
    comment, *rest = call["argv"]
    assert rest == ["--hold", "--gpus=1", "-p", "gpu", "job.sh", "--lr=1"]
    description = decode(comment.removeprefix("--comment="))
    assert description is not None
    assert (description.workload, description.steps) == ("A3C", 100)
    assert call["spool"] == f"/spool/hadar/u{os.geteuid()}"
    assert (done.returncode, notes_of(done)) == (0, TAKEN)


def test_a_job_is_not_held_where_slurm_keeps_the_queue(site: Site) -> None:
    """It only excludes the nodes on which it cannot run; copies need a node each, and are held."""
    site.beat(steered=("",))
    slow, fast = "--hadar-throughput=V100=10", "--hadar-throughput=V100=10,K80=1"
    comment, *rest = call_of(site.run(slow, "--hadar-steps=100", "job.sh"))["argv"]
    assert rest == ["--exclude=n2", "--gpus=1", "job.sh"]
    description = decode(comment.removeprefix("--comment="))
    assert description is not None
    assert (description.is_held, description.steered) == (False, digest(["n2"]))
    done = site.run(fast, "--hadar-steps=100", "job.sh")
    assert call_of(done)["argv"][1:] == ["--gpus=1", "job.sh"]
    assert "hadard places this job" in notes_of(done)
    forked = ("--hadar-copies=2", "--hadar-steps=100", fast, "job.sh")
    assert "--hold" in call_of(site.run(*forked))["argv"]
    # Of several partitions, as hadard does, the mode that changes least.
    site.beat(partitions=("a", "b", "c"), steered=("b", "c"))
    nodes = "\n".join(f"n-{name}|gpu:V100:4|{name}" for name in "abc")
    for names, is_held in (("a", True), ("a,b", False), ("c,b", False), ("b,a", False)):
        done = site.run("-p", names, "-G1", "-t9", *OWN, "job.sh", GPUS=nodes)
        argv = call_of(done)["argv"]
        assert ("--hold" in argv) == is_held
    site.beat(steered=("",))
    # Another partition has another mode.
    assert "--hold" in call_of(site.run("-p", "other", fast, "--hadar-steps=9", "job.sh"))["argv"]


def test_an_unheld_job_avoids_types_on_which_its_workload_has_failed(site: Site) -> None:
    """Slurm may start it before hadard sees it; the dry run says why, and named types are kept."""
    me = pwd.getpwuid(os.getuid()).pw_name
    record = TypeRecord(failed_s=50.0, lasted_s=12.0, failing_since_s=50.0)
    write_failures(site.root, {Work(Workload(me, "A3C"), 1): {"k80": record}})
    site.beat(steered=("",))
    assert call_of(site.run(*OWN, "job.sh"))["argv"][1:] == ["--exclude=n2", "--gpus=1", "job.sh"]
    for others in (
        ["--hadar-model=Transformer", "--hadar-steps=100"],
        [*OWN, "--hadar-gang=2"],
        [*OWN, "--hadar-types=K80,V100"],
    ):
        argv = call_of(site.run(*others, "job.sh"))["argv"]
        assert not any(word.startswith("--exclude") for word in argv)
    done = site.run(*OWN, "--hadar-dry-run", "job.sh")
    why = "its workload failed there after 12 s on 1970-01-01 "
    assert f"hadar-sbatch: not on k80: {why}" in done.stderr
    assert re.search(f"^K80 .* {why}", done.stdout, re.MULTILINE)


def test_the_line_says_whether_hadard_is_gone_or_its_rounds_fail(site: Site) -> None:
    """And since when: of the same expired heartbeat, the process may write it or not."""
    now_s = time.time()
    then_s = now_s - 3600.0
    then = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(then_s))
    failing = LastRounds(then_s - 60.0, failed=4, since_s=then_s, part="plan", fault="no plan")
    for signed_s, rounds, why in (
        (now_s, failing, f"hadard runs, but its last 4 rounds failed, since {then} (hadar status)"),
        (now_s, LastRounds(then_s), f"hadard runs, but no round has succeeded since {then}"),
        (now_s, LastRounds(), "hadard runs, but no round has succeeded"),
        (then_s, failing, f"hadard is not alive here (no heartbeat in {site.root} since {then})"),
    ):
        beat = Heartbeat(1, "cluster", 0.0, "/spool", None, 60.0, signed_s=signed_s, rounds=rounds)
        write_heartbeat(site.root, beat)
        done = site.run(*OWN, "job.sh")
        assert "--hold" not in call_of(done)["argv"]
        assert (done.returncode, notes_of(done)) == (0, left(why))


def test_a_job_is_not_held_where_nobody_would_place_it(site: Site) -> None:
    """Without hadard the job is described, but not held, and one line says why."""
    done = site.run(*OWN, "job.sh")
    assert "--hold" not in call_of(done)["argv"]
    assert call_of(done)["argv"][0].startswith('--comment={"hadar":1')
    assert (done.returncode, notes_of(done)) == (0, unseen(site))


def test_a_sign_of_life_that_is_too_old_counts_for_nothing(site: Site) -> None:
    """With an expired heartbeat, as of a dead hadard, a job is not held."""
    site.beat(good_for_s=-1.0)
    done = site.run(*OWN, "job.sh")
    assert "--hold" not in call_of(done)["argv"]
    assert notes_of(done) == unseen(site)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', "\x00", '{"partitions": 5}'])
def test_a_sign_of_life_that_cannot_be_read_counts_for_nothing(site: Site, text: str) -> None:
    """With an unreadable heartbeat a job is not held."""
    (site.root / "heartbeat.json").write_text(text, encoding="utf-8")
    assert notes_of(site.run(*OWN, "job.sh")) == unseen(site)


@pytest.mark.parametrize(
    ("words", "environment", "script", "other"),
    [
        (["-p", "gpu"], {}, "", None),
        (["--partition=gpu-long"], {}, "", None),
        (["--part", "gpu"], {}, "", None),
        (["-p", "cpu"], {}, "", "partition cpu"),
        (["-p", "gpu,cpu"], {}, "", "partition cpu"),
        (["-p", "io,gpu,cpu"], {}, "", "partition io and cpu"),
        (["-p", "gpu-long,gpu"], {}, "", None),
        (["-p", "gpu,,gpu-long,"], {}, "", None),
        ([], {}, "#SBATCH --partition=gpu,gpu-long", None),
        ([], {}, "", "the default partition"),
        ([], {"SBATCH_PARTITION": "gpu"}, "", None),
        (["-p", "cpu"], {"SBATCH_PARTITION": "gpu"}, "", "partition cpu"),
        ([], {}, "#SBATCH -p gpu", None),
        (["-p", "cpu"], {}, "#SBATCH -p gpu", "partition cpu"),
        # sbatch's environment overrides the script.
        ([], {"SBATCH_PARTITION": "cpu"}, "#SBATCH -p gpu", "partition cpu"),
    ],
)
def test_a_job_is_held_only_in_partitions_that_hadard_serves(
    site: Site, words: list[str], environment: dict[str, str], script: str, other: str | None
) -> None:
    """A job is held only if hadard enforces in all partitions that sbatch will use."""
    site.beat(partitions=("gpu", "gpu-long"))
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{script}\necho train\n", encoding="utf-8")
    done = site.run(*words, *OWN, "job.sh", **environment)
    assert ("--hold" in call_of(done)["argv"]) == (other is None)
    assert notes_of(done) == (left(f"hadard places no jobs in {other}") if other else TAKEN)


def test_sbatchs_status_and_words_are_passed_on(site: Site) -> None:
    """The exit status and the messages are those of sbatch."""
    site.beat()
    done = site.run(*OWN, "job.sh", STATUS_OF_SBATCH="7")
    assert done.returncode == 7
    assert done.stderr == TAKEN + "sbatch: a word of its own\n"


SCONTROL = """
import os, sys
print(*sys.argv[1:], file=open("scontrol", "a"))
sys.exit(int(os.environ.get("STATUS_OF_SCONTROL", "0")))
"""


def test_a_job_that_slurm_refuses_in_a_trial_is_submitted_without_the_hold(site: Site) -> None:
    """So that sbatch refuses it in its own words; if it accepts it after all, the job is held."""
    site.command("scontrol", SCONTROL)
    site.command("squeue", SQUEUE)
    site.beat()
    script = "#!/bin/sh\n#HADAR --hadar-model=A3C --hadar-steps=100\ntrue\n"
    refused = site.run(stdin=script, STATUS_OF_TRIAL="1", STATUS_OF_SBATCH="7")
    assert "--hold" not in call_of(refused)["argv"]
    assert call_of(refused)["script"] == script
    assert (refused.returncode, notes_of(refused)) == (7, "")
    assert not (site.root / "scontrol").exists()
    told = json.loads(site.run(*OWN, "--hadar-json", "job.sh", STATUS_OF_TRIAL="1").stdout)
    assert (told["taken"], told["is_held"], told["sbatch"][3]) == (True, True, "--hold")
    assert (site.root / "scontrol").read_text() == "uhold 17\n"
    site.command("sbatch", SBATCH.replace("print(json.dumps", "print('Submitted batch job 9');("))
    done = site.run(*OWN, "job.sh", "--hold", STATUS_OF_TRIAL="1")
    assert (done.stdout, notes_of(done)) == ("Submitted batch job 9\n", TAKEN)
    assert (site.root / "scontrol").read_text() == "uhold 17\nuhold 9\n"
    why = left("Slurm did not hold it")
    done = site.run(*OWN, "job.sh", STATUS_OF_TRIAL="1", STATUS_OF_SCONTROL="1")
    assert (done.returncode, notes_of(done)) == (0, why)


@pytest.mark.parametrize(
    ("answer", "status", "held"),
    [
        ("Submitted batch job 17\n2026\n", 0, "17"),
        ("17\n2026\nquota: 5 of 9\n", 0, "17"),
        ("2026\n\x1b[32m17\x1b[0m\n9\n", 0, "17"),
        ("9\n", 0, "9"),
        # A wrapper has its own status.
        ("Submitted batch job 9\n", 1, "9"),
        ("2026\n7\n4711\n", 0, ""),
        ("2026\nquota: 5 of 9\n", 1, ""),
        ("sbatch: error: Batch job submission failed: Invalid account\n", 0, ""),
    ],
)
def test_the_job_that_was_submitted_is_held_and_no_other(
    site: Site, answer: str, status: int, held: str
) -> None:
    """Of the numbers in sbatch's answer, that of the job with this description is taken."""
    site.command("scontrol", SCONTROL)
    site.command("squeue", SQUEUE)
    site.command("sbatch", SBATCH.replace("print(json.dumps", f"print({answer!r}, end='');("))
    site.beat()
    done = site.run(*OWN, "job.sh", STATUS_OF_TRIAL="1", STATUS_OF_SBATCH=str(status))
    assert (done.returncode, done.stdout) == (status, answer)
    path = site.root / "scontrol"
    assert (path.read_text() if path.exists() else "") == (f"uhold {held}\n" if held else "")
    why = "" if status else left("Slurm did not hold it")
    assert notes_of(done) == (TAKEN if held else why)


def test_no_job_is_held_where_squeue_does_not_show_it(site: Site) -> None:
    """Such as where a filter of the site has replaced the comment: hadard would not release it."""
    site.command("scontrol", SCONTROL)
    site.command("sbatch", SBATCH.replace("print(json.dumps", "print('17');("))
    site.beat()
    for squeue in ("raise SystemExit(1)", "print('17|Resources|(null)')", "print(17)", ""):
        site.command("squeue", squeue)
        done = site.run(*OWN, "job.sh", STATUS_OF_TRIAL="1")
        assert (done.stdout, notes_of(done)) == ("17\n", left("Slurm did not hold it"))
    assert not (site.root / "scontrol").exists()


@pytest.mark.parametrize(
    ("words", "environment", "is_quiet"),
    [(("--wait",), {}, False), ((), {"SBATCH_WAIT": "1"}, False), (("-Q",), {}, True)],
)
def test_a_job_that_could_not_be_held_later_is_left_if_a_trial_is_refused(
    site: Site, words: tuple[str, ...], environment: dict[str, str], *, is_quiet: bool
) -> None:
    """sbatch --wait returns only when the job has ended, and --quiet prints no job id."""
    site.command("scontrol", SCONTROL)
    site.beat()
    variables = {**environment, "STATUS_OF_TRIAL": "1"}
    done = site.run(*OWN, *words, "job.sh", "--hold", **variables)
    assert call_of(done)["argv"][1:] == ["--gpus=1", *words, "job.sh", "--hold"]
    assert notes_of(done) == ("" if is_quiet else left("Slurm cannot start it now"))
    # Described as a job of plain Slurm, which would not place copies on separate nodes.
    copies = ("--hadar-copies=2", "--hadar-throughput=V100=10,K80=1", "--hadar-steps=9")
    call = call_of(site.run(*copies, *words, "job.sh", **variables))
    assert not any(word.startswith(("--array", "--hold")) for word in call["argv"])
    description = decode(call["argv"][0].removeprefix("--comment="))
    assert description is not None
    assert (description.copies, description.is_held, call["copies"]) == (1, False, None)
    assert not (site.root / "scontrol").exists()


def test_a_job_whose_id_is_not_printed_is_left(site: Site) -> None:
    """As by a site's wrapper around sbatch; nothing else is held."""
    site.command("scontrol", SCONTROL)
    site.command("sbatch", "import sys; sys.exit('--test-only' in sys.argv)")
    site.beat()
    done = site.run(*OWN, "job.sh")
    assert (done.returncode, done.stderr) == (0, left("Slurm did not hold it"))
    assert not (site.root / "scontrol").exists()


def test_a_script_that_can_be_read_once_is_not_tried(site: Site) -> None:
    """A named pipe: the trial would read it in the place of the submission."""
    os.mkfifo(site.root / "pipe.sh")
    (site.root / "job.sh").unlink()
    site.command("sbatch", "import json, sys; print(json.dumps({'argv': sys.argv[1:]}))")
    site.beat()
    assert call_of(site.run(*OWN, "pipe.sh", STATUS_OF_TRIAL="1"))["argv"][1] == "--hold"


@pytest.mark.parametrize(
    ("said", "status", "is_refused"),
    [
        ("sbatch: Job 17 to start at 2026-11-29T15:38:01 using 1 processors", 1, False),
        ("sbatch: error: slurm.conf warns\nsbatch: Job 17 to start at 2026-11-29", 0, False),
        ("sbatch: error: Memory\nallocation failure: Requested node configuration", 0, True),
        ("allocation failure: Unable to contact slurm controller (connect failure)", 0, False),
        ("Welcome", 0, False),
        ("sbatch: error: the site does not want this job", 1, True),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_words_of_a_trial_count_before_its_status(
    site: Site, said: str, status: int, stream: str, *, is_refused: bool
) -> None:
    """A wrapper that ends with 0 hid what Slurm refuses; one that ends with 1, each job's trial."""
    site.command("sbatch", f"import sys; print({said!r}, file=sys.{stream}); sys.exit({status})")
    sbatch = RealSbatch(str(site.root / "bin" / "sbatch"), {})
    done = trial.trial_of(sbatch, ("sbatch", "x"), {}, is_piped=False)
    assert done is not None
    assert trial.is_refused(done) == is_refused


def test_a_trial_that_slurm_does_not_answer_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that takes long nor one that does not reach slurmctld."""
    monkeypatch.setattr(trial, "_TRIAL_S", 0.2)
    sbatch = RealSbatch(str(site.root / "bin" / "sbatch"), {})
    site.command("sbatch", "import time; time.sleep(60)")
    assert trial.trial_of(sbatch, ("sbatch", "job.sh"), {}, is_piped=False) is None
    monkeypatch.undo()
    site.command("sbatch", "import sys; sys.exit('error: Unable to contact slurm controller')")
    done = trial.trial_of(sbatch, ("sbatch", "job.sh"), {}, is_piped=False)
    assert done is not None
    assert not trial.is_refused(done)


WRAPPER = """
import json, os, sys, time
if "drop" in os.environ["WRAPPER"]:
    sys.argv = [word for word in sys.argv if word != "--test-only"]
print(json.dumps(sys.argv), file=open("calls", "a"))
print(os.environ.get("SAYS", ""), end="")
print("project X has 3 h left", file=sys.stderr)
"""


def behind_a_wrapper(site: Site, answer: str) -> None:
    """Put a wrapper before an sbatch that prints `answer`, and ends a job of --wait with 3."""
    site.command("scontrol", SCONTROL)
    site.command("squeue", SQUEUE)
    says = (
        f"print({answer!r}, flush=True); '--wait' in sys.argv and (time.sleep(0.3), sys.exit(3));("
    )
    site.command("sbatch", WRAPPER + SBATCH.replace("print(json.dumps", says))
    site.beat()


def calls_of(site: Site) -> list[list[str]]:
    """Return the calls of sbatch without those that it has tried."""
    lines = (site.root / "calls").read_text().splitlines()
    return [call for call in map(json.loads, lines) if "--test-only" not in call]


@pytest.mark.parametrize(
    "answer", ["Submitted batch job 17", "welcome\nSubmitted batch job 17", "17"]
)
@pytest.mark.parametrize("options", [(), ("--hadar-json",)])
def test_a_wrapper_that_does_not_pass_a_trial_on_submits_once(
    site: Site, answer: str, options: tuple[str, ...]
) -> None:
    """The trial's job, which has the description, is the one that is held."""
    behind_a_wrapper(site, answer)
    done = site.run(*OWN, *options, "job.sh", WRAPPER="drops")
    assert done.returncode == 0, done.stderr
    (call,) = calls_of(site)
    assert "--hold" not in call
    assert "project X has 3 h left" in done.stderr
    assert (site.root / "scontrol").read_text() == "uhold 17\n"
    if options:
        assert (json.loads(done.stdout)["job"], json.loads(done.stdout)["is_held"]) == ("17", True)
    else:
        assert done.stdout == f"{answer}\n"
        assert TAKEN in done.stderr


@pytest.mark.parametrize("squeue", ["raise SystemExit(1)", "print('17|Resources|replaced')"])
def test_a_job_submitted_by_a_trial_counts_without_squeue(site: Site, squeue: str) -> None:
    """As where a site's filter replaces the comment; the job is then one of plain Slurm."""
    behind_a_wrapper(site, "Submitted batch job 17")
    site.command("squeue", squeue)
    done = site.run(*OWN, "job.sh", WRAPPER="drops")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 17\n")
    assert len(calls_of(site)) == 1
    assert left("Slurm did not hold it") in done.stderr


def test_a_job_submitted_by_a_trial_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sbatch's status, however long it takes."""
    behind_a_wrapper(site, "Submitted batch job 17")
    done = site.run(*OWN, "--wait", "job.sh", WRAPPER="drops")
    assert (done.returncode, len(calls_of(site))) == (3, 1)


@pytest.mark.parametrize("options", [(), ("-Q",)])
def test_a_number_that_a_wrapper_prints_is_no_submission(
    site: Site, options: tuple[str, ...]
) -> None:
    """Job 9 has the same description: of a sweep each job has."""
    behind_a_wrapper(site, "17")
    site.run(*OWN, "job.sh", WRAPPER="passes")  # the one before, whose comment squeue shows
    (site.root / "calls").unlink()
    done = site.run(*OWN, *options, "job.sh", WRAPPER="passes", SAYS="9\n4711\n")
    assert (done.returncode, len(calls_of(site))) == (0, 1), done.stderr
    assert not (site.root / "scontrol").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hadar-steps=none", "--hadar-model=A3C"], "--hadar-steps 'none': expected a whole"),
        (["--hadar-model=A3C"], "--hadar-steps is missing"),
        (["--hadar-stepz=1"], "unknown option --hadar-stepz; the nearest is --hadar-steps"),
        (["--no-hadarr"], "unknown option --no-hadarr; the nearest is --no-hadar"),
        (["--hadar"], "unknown option --hadar; the nearest is --no-hadar"),
        (["--hadar-dry-run=yes"], "--hadar-dry-run takes no value, 'yes' is given"),
        ([*OWN, "--hadar-json", "-Q"], "--quiet is given: sbatch would not print the job id"),
        (["-N1", ":", *OWN], "':' or hetjob is given"),
        ([*OWN, "-N1", ":"], "':' or hetjob is given"),
        ([*OWN, "--tres-per-task=cpu:1,gres/gpu:2"], "--tres-per-task is given: give the"),
        ([*OWN, "--hadar-gang=8"], "no nodes of this cluster can hold the gang 8x1, 4x2"),
        (["--hadar-steps=1", "--hadar-throughput=a100=1"], "GPU type 'a100' is not in this clus"),
    ],
)
def test_a_fault_is_one_line_and_nothing_is_submitted(
    site: Site, words: list[str], said: str
) -> None:
    """An error ends with status 2 and one line, without output or a job."""
    site.beat()
    done = site.run(*words, "job.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hadar-sbatch: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["-w", "n1"], "nodelist"),
        (["--nodelist=n1"], "nodelist"),
        (["--nodefile=x"], "nodefile"),
    ],
)
def test_a_place_that_the_user_chose_is_left_to_slurm(
    site: Site, words: list[str], option: str
) -> None:
    """A job with fixed nodes is submitted as a plain job, and the line names the option."""
    site.beat()
    done = site.run(*words, *OWN, "job.sh")
    assert call_of(done)["argv"] == [*words, "job.sh"]
    assert notes_of(done) == left(f"--{option} is given")


def test_nodes_that_the_user_excludes_are_kept_beside_ours(site: Site) -> None:
    """In the description, for a lost ledger, and in one option: sbatch heeds the last one alone."""
    site.command("scontrol", 'import sys\nprint("\\n".join(sys.argv[-1].split(",")))')
    site.beat(steered=("",))
    words = ("--hadar-throughput=V100=10", "--hadar-steps=100", "-x", "n7,n8", "job.sh")
    comment, *rest = call_of(site.run(*words))["argv"]
    assert rest == ["--exclude=n2,n7,n8", "--gpus=1", "job.sh"]
    description = decode(comment.removeprefix("--comment="))
    assert description is not None
    assert description.excludes == "n7,n8"
    site.beat()
    held = call_of(site.run(*words))["argv"]
    assert held[1:] == ["--hold", "--gpus=1", "-x", "n7,n8", "job.sh"]


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ("./nodes.txt", "hadard cannot read --exclude=./nodes.txt"),
        ("n[1-999999999]", "hadard cannot read --exclude=n[1-999999999]"),
        ("n1,n2", "--exclude=n1,n2 leaves no node with GPUs"),
    ],
)
def test_excluded_nodes_that_leave_no_choice(site: Site, nodes: str, why: str) -> None:
    """Such a job is left to Slurm as it is."""
    site.command("scontrol", 'import sys\nprint("\\n".join(sys.argv[-1].split(",")))')
    site.beat()
    done = site.run("-x", nodes, *OWN, "job.sh")
    assert call_of(done)["argv"] == ["-x", nodes, "job.sh"]
    assert notes_of(done) == left(why)


def test_without_options_of_ours_it_is_sbatch(site: Site) -> None:
    """Without hadar-sbatch's options the call is unchanged, and one line says why."""
    site.beat()
    done = site.run("-HN2", "--comment=mine", "job.sh", "--hadar-steps=1")
    assert call_of(done)["argv"] == ["-HN2", "--comment=mine", "job.sh", "--hadar-steps=1"]
    assert call_of(done)["spool"] is None
    assert notes_of(done) == left("no GPUs are requested")


def test_the_script_may_come_on_standard_input(site: Site) -> None:
    """A script on standard input reaches sbatch unchanged."""
    site.beat()
    script = "#!/bin/sh\necho train\n"
    for words in ([], ["/dev/stdin"]):
        assert call_of(site.run(*OWN, *words, stdin=script))["script"] == script


def test_lines_in_a_script_from_standard_input_count(site: Site) -> None:
    """#HADAR lines of a script on standard input count, and sbatch gets the whole script."""
    site.beat()
    script = "#!/bin/sh\n#HADAR --hadar-model=A3C\n#HADAR --hadar-steps 7\n#SBATCH -G 2\necho\n"
    for words in ([], ["/dev/stdin"], ["--"]):
        call = call_of(site.run(*words, stdin=script))
        assert call["script"] == script
        description = decode(call["argv"][0].removeprefix("--comment="))
        assert description is not None
        assert (description.steps, description.gpus) == (7, 2)
        assert call["argv"][1:] == ["--hold", *words]


def test_no_hadar_outweighs_all_else_that_is_ours(site: Site) -> None:
    """--no-hadar, on the command line or in the script, overrides all hadar-sbatch options."""
    site.beat()
    (site.root / "job.sh").write_text("#!/bin/sh\n#HADAR --hadar-steps=x --hadar-oops\ntrue\n")
    done = site.run("--no-hadar", *OWN, "-N1", "job.sh")
    why = left("--no-hadar is given")
    assert (call_of(done)["argv"], notes_of(done)) == (["-N1", "job.sh"], why)
    (site.root / "job.sh").write_text("#!/bin/sh\n#HADAR --no-hadar\ntrue\n")
    assert call_of(site.run(*OWN, "job.sh"))["argv"] == ["job.sh"]


@pytest.mark.parametrize("words", [["--no-hadar"], []])
def test_a_job_that_opts_out_is_not_enrolled(site: Site, words: list[str]) -> None:
    """Where plain jobs are enrolled, the word is added to the comment of the line or the script."""
    site.beat(enrols=True)
    environment = {} if words else {"HADAR": "no"}
    (site.root / "job.sh").write_text("#!/bin/sh\n#SBATCH --comment='in script'\ntrue\n")
    done = site.run(*words, "--gpus=1", "job.sh", **environment)
    assert call_of(done)["argv"] == ["--gpus=1", "--comment=in script no-hadar", "job.sh"]
    assert notes_of(done) == left("--no-hadar is given")
    done = site.run(*words, "--comment=mine", "job.sh", **environment)
    assert call_of(done)["argv"] == ["--comment=mine", "--comment=mine no-hadar", "job.sh"]


def test_without_hadar_a_script_that_only_sbatch_can_read_is_passed_on(site: Site) -> None:
    """Even with options of hadar-sbatch, which count for nothing then."""
    (site.root / "job.sh").write_text("#!/bin/sh\n#SBATCH --comment='open\ntrue\n")
    done = site.run("--no-hadar", *OWN, "job.sh")
    assert call_of(done)["argv"] == ["job.sh"]


@pytest.mark.parametrize("own", [OWN, [], ["--no-hadar"], [*OWN, "--hold"]])
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["-Q"], {}),
        (["--quiet"], {}),
        (["--parsable"], {}),
        ([], {"HADAR_QUIET": "1"}),
    ],
)
def test_the_line_can_be_silenced(
    site: Site, own: list[str], words: list[str], environment: dict[str, str]
) -> None:
    """--quiet, --parsable and HADAR_QUIET suppress the line."""
    for _ in range(2):
        assert notes_of(site.run(*own, *words, "job.sh", **environment)) == ""
        site.beat()


def test_a_fault_is_never_silenced(site: Site) -> None:
    done = site.run("--hadar-steps=none", "-Q", "--parsable", "job.sh", HADAR_QUIET="1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_no_quiet_is_none(site: Site) -> None:
    for text in ("", "0"):
        done = site.run("job.sh", HADAR_QUIET=text)
        assert notes_of(done) == left("no GPUs are requested")


@pytest.mark.parametrize("place", ["&-", "/dev/full"])
def test_a_job_is_submitted_where_nothing_can_be_printed(site: Site, place: str) -> None:
    """With standard error closed or full the job is submitted without the line."""
    site.command("sbatch", "import sys; print(*sys.argv[1:])")
    site.beat()
    words = f"{sys.executable} -m hadar_slurm.cli.sbatch -N1 job.sh 2>{place}"
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        cwd=site.root,
        env=site.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "-N1 job.sh\n", "")


def test_what_sbatch_takes_from_the_environment_is_heeded(site: Site) -> None:
    """SBATCH_ variables for GPUs, nodes and requeue count; the command line overrides them."""
    site.beat()
    gpus = call_of(site.run(*OWN, "job.sh", SBATCH_GPUS="2"))["argv"]
    assert not any(word.startswith("--gpus") for word in gpus)
    assert '"gpus":2' in gpus[0]
    assert '"gpus":1' in call_of(site.run(*OWN, "-G1", "job.sh", SBATCH_GPUS="2"))["argv"][0]
    left = site.run(*OWN, "job.sh", SBATCH_CONSTRAINT="fast")
    assert call_of(left)["argv"] == ["job.sh"]
    assert "--constraint=fast leaves no node with GPUs" in notes_of(left)
    taken = site.run(*OWN, "job.sh", SBATCH_CONSTRAINT="n1|n2")
    assert call_of(taken)["argv"][1:] == ["--hold", "--gpus=1", "job.sh"]
    checkpoint = [*OWN, "--hadar-checkpoint=yes", "job.sh"]
    assert "--requeue" not in call_of(site.run(*checkpoint, SBATCH_NO_REQUEUE="1"))["argv"]
    kept = call_of(site.run(*checkpoint, SBATCH_OPEN_MODE="truncate"))["argv"]
    assert "--requeue" in kept
    assert "--open-mode=append" not in kept
    plain = ["-G1", "-t9:00:00", "job.sh"]
    limits = "1:00:00|1:00:00"
    named = site.run(*plain, LIMITS=limits, SBATCH_JOB_NAME="bert", SBATCH_QOS="long")
    assert '"workload":"job:bert' in call_of(named)["argv"][0]
    assert call_of(site.run(*plain, LIMITS=limits))["argv"] == plain


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": ""}, {"LC_CTYPE": "C"}])
def test_sbatch_finds_what_a_shell_would_have_left_it(site: Site, given: dict[str, str]) -> None:
    """sbatch gets the same environment and ignored signals as from a shell."""
    sbatch = site.root / "bin" / "sbatch"
    # A binary, because scripts get HADAR_SBATCH_TRIED in addition.
    shutil.copy("/bin/sh", sbatch)
    (site.root / "job.sh").write_text("/bin/cat /proc/self/status; exec /usr/bin/env\n")
    environment = {**site.environment(), "LANG": "C", **given}
    for name in ("LC_ALL", "LC_CTYPE"):
        if name not in given:
            environment.pop(name, None)
    ours, direct = (
        subprocess.run(
            [*program, "job.sh"],
            env=environment,
            cwd=site.root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for program in ([sys.executable, "-m", "hadar_slurm.cli.sbatch"], [str(sbatch)])
    )
    told = ("SigIgn", "LC_", "LANG", "HADAR", "PYTHON")
    assert [line for line in ours if line.startswith(told)] == [
        line for line in direct if line.startswith(told)
    ]


def test_json_tells_the_job(site: Site) -> None:
    """--hadar-json prints one object with the job, and ends with sbatch's status."""
    site.beat()
    done = site.run("--hadar-json", *OWN, "job.sh", STATUS_OF_SBATCH="3")
    told = json.loads(done.stdout)
    assert (told["job"], told["cluster"], told["is_held"]) == ("17", "cluster", True)
    assert told["sbatch"][:2] == ["sbatch", "--parsable"]
    assert told["environment"] == {"HADAR_SPOOL": f"/spool/hadar/u{os.geteuid()}"}
    assert [choice["gpu_type"] for choice in told["choices"]] == ["V100", "K80"]
    assert (told["taken"], told["why"]) == (True, "1 GPU of any type, 100 steps")
    assert (done.returncode, done.stderr) == (3, "")
    plain = json.loads(site.run("--hadar-json", "job.sh").stdout)
    assert (plain["job"], plain["is_held"], plain["choices"]) == ("17", False, [])
    assert plain["sbatch"] == ["sbatch", "--parsable", "job.sh"]
    assert (plain["taken"], plain["why"]) == (False, "no GPUs are requested")


def test_a_dry_run_submits_nothing(site: Site) -> None:
    """A dry run needs no sbatch, and prints a file name that is not UTF-8 unchanged."""
    (site.root / "bin" / "sbatch").unlink()
    site.beat()
    done = site.run("--hadar-dry-run", *OWN, os.fsdecode(b"job \xff.sh"), LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, TAKEN)
    call, _, table = done.stdout.partition("\n\n")
    assert call.startswith(f"HADAR_SPOOL=/spool/hadar/u{os.geteuid()} sbatch '--comment={{")
    assert call.endswith(os.fsdecode(b" --hold --gpus=1 'job \xff.sh'"))
    assert "chosen first" in table.splitlines()[1]
    assert json.loads(site.run("--hadar-dry-run", "--hadar-json", *OWN, "x").stdout)["job"] is None


def test_a_dry_run_of_a_job_of_slurms_says_so(site: Site) -> None:
    """A dry run of an unmanaged job prints the user's call without a table."""
    done = site.run("--hadar-dry-run", "-N1", "job.sh")
    assert done.stdout == "sbatch -N1 job.sh\n"
    assert done.stderr == left("no GPUs are requested")
    told = json.loads(site.run("--hadar-dry-run", "--hadar-json", "-N1", "job.sh").stdout)
    assert (told["taken"], told["why"], told["job"]) == (False, "no GPUs are requested", None)


def test_a_dry_run_tells_what_the_line_leaves_out(site: Site) -> None:
    """A dry run and the JSON name models similar to an unknown one."""
    site.beat()
    words = ["--hadar-model=A3D", "--hadar-steps=100", "job.sh"]
    line = TAKEN.replace(")", ", no throughput is known for A3D)")
    assert notes_of(site.run(*words)) == line
    shown, note = site.run("--hadar-dry-run", *words).stderr.splitlines(keepends=True)
    assert shown == line
    assert "similar names: A3C" in note
    [note] = json.loads(site.run("--hadar-json", *words).stdout)["notes"]
    assert "similar names: A3C" in note


def test_words_arrive_as_they_were_given(site: Site) -> None:
    """Arguments with special characters reach sbatch unchanged, without a shell."""
    evil = "a b\"c'd\\e\n$(touch x) `y` ; | & é🦀"
    argv = call_of(site.run(*OWN, f"--job-name={evil}", "job.sh", evil))["argv"]
    assert argv[-3:] == [f"--job-name={evil}", "job.sh", evil]


def test_a_slurm_that_does_not_answer_is_left_to_sbatch(site: Site) -> None:
    """If sinfo fails, the gang is not checked, and the job is submitted."""
    site.beat()
    done = site.run(*OWN, "--hadar-gang=64", "job.sh", STATUS_OF_SINFO="1")
    assert "--gpus=64" in call_of(done)["argv"]


@pytest.mark.parametrize("own", [OWN, ["--gpus=2", "--time=5"]])
def test_a_failure_of_ours_stops_no_submission(site: Site, own: list[str]) -> None:
    """After an impossible answer of sinfo the job goes to plain Slurm; -Q prints the failure, too.

    Installed in sbatch's place, a failure would otherwise stop every submission.
    """
    site.beat()
    done = site.run(*own, "-Q", "-N1", "job.sh", GPUS=f"n1|gpu:v100:{'9' * 5000}|main*")
    plain = [word for word in own if not word.startswith("--hadar")]
    assert call_of(done)["argv"] == [*plain, "-Q", "-N1", "job.sh"]
    assert done.returncode == 0
    assert notes_of(done).startswith(
        "hadar-sbatch: failed, so plain Slurm places this job: ValueEr"
    )
    assert notes_of(done).count("\n") == 1


def test_without_sbatch_there_is_one_line(site: Site) -> None:
    """Without sbatch there is one line, and the shell's status for a missing command."""
    (site.root / "bin" / "sbatch").unlink()
    done = site.run(*OWN, "job.sh")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == (
        "hadar-sbatch: no sbatch on PATH but hadar-sbatch itself: "
        "set HADAR_SBATCH to the path of Slurm's sbatch\n"
    )


@pytest.mark.parametrize(
    "words", [["--hadar-help"], ["--help"], ["-h"], ["-HN2", "--hel", "job.sh"]]
)
def test_help_lists_every_option(site: Site, words: list[str]) -> None:
    """The help lists hadar-sbatch's options and refers to `sbatch --help`."""
    done = site.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: hadar-sbatch")
    assert "`sbatch --help`" in done.stdout
    for name in ("model", "batch-size", "throughput", "steps", "gang", "checkpoint"):
        assert f"--hadar-{name}" in done.stdout


def test_version_names_the_build_too(site: Site) -> None:
    """On standard error, and only under its own name: programs read sbatch's answer."""
    own = f"hadar-sbatch: hadar_slurm {version()}\n"
    assert site.run("--version").stderr.startswith(own)
    assert own not in site.run("--usage").stderr


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--usage"], ["job.sh", "--help"]])
def test_other_questions_are_sbatchs(site: Site, words: list[str]) -> None:
    """--version, -V, --usage and a script's --help are passed on to sbatch."""
    assert call_of(site.run(*words))["argv"] == words


# Runs hadar-sbatch up to the call of sbatch, and prints the modules that it imported.
LIST_MODULES = """
import os, sys
before = set(sys.modules)
from hadar_slurm.cli import sbatch
class Done(Exception): pass
def execve(*call): raise Done
os.execve = execve
try:
    sbatch.main(sys.argv[1:])
except Done:
    pass
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["job.sh"],
        ["--gpus=v100:2", "--time=0", "job.sh"],
        ["--gpus=2", "--nodelist=n1", "job.sh"],
        [*OWN, "job.sh"],
        [*OWN, "--hadar-dry-run", "job.sh"],
    ],
)
def test_it_needs_the_standard_library_alone(site: Site, words: list[str]) -> None:
    """hadar-sbatch imports only the standard library, so that submissions stay fast."""
    site.beat()
    done = site.run(*words, program=("-c", LIST_MODULES))
    assert done.returncode == 0, done.stderr
    modules = done.stdout.splitlines()[-1].split()
    assert {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) == {
        "hadar_slurm"
    }
    if not set(OWN) & set(words):
        # Without hadar-sbatch's options the slowest modules are not imported.
        assert {"dataclasses", "json", "subprocess", "difflib", "pathlib"}.isdisjoint(modules)


def test_where_hadard_is_not_seen_little_is_imported(site: Site) -> None:
    """Without a heartbeat the slow modules are not imported."""
    done = site.run("--gpus=2", "--time=5", "job.sh", program=("-c", LIST_MODULES))
    assert notes_of(done) == unseen(site)
    modules = done.stdout.splitlines()[-1].split()
    assert {"subprocess", "difflib", "hadar_slurm.submit.describing.describe"}.isdisjoint(modules)


def test_copies_are_told_that_they_are(site: Site) -> None:
    """The array has a copy per suitable node of its partitions, and HADAR_COPIES has the number."""
    site.beat()
    for words, array in (([], "0-1"), (["-p", "main,other"], "0-2")):
        call = call_of(site.run(*OWN, "--hadar-copies=auto", *words, "job.sh"))
        assert f"--array={array}" in call["argv"]
        assert call["copies"] == str(int(array[-1]) + 1)


def test_a_job_that_one_node_suits_is_an_ordinary_one(site: Site) -> None:
    """A job that only one node suits is submitted without an array, and the line says so."""
    site.beat()
    done = site.run(*OWN, "--hadar-copies=4", "-p", "other", "job.sh")
    call = call_of(done)
    assert call["copies"] is None
    assert not any(word.startswith("--array") for word in call["argv"])
    assert notes_of(done) == TAKEN.replace("type, ", "type, in one copy (only one node suits), ")


@pytest.mark.parametrize("words", [[*OWN, "--array=0-3"], []])
def test_a_job_submitted_by_a_copy_is_none(site: Site, words: list[str]) -> None:
    """A job submitted from within a copy does not inherit HADAR_COPIES."""
    site.beat()
    assert call_of(site.run(*words, "job.sh", HADAR_COPIES="5"))["copies"] is None


# Jobs without hadar-sbatch's options


PLAIN = ["--time=2:00:00", "--gpus=2", "job.sh"]


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["--gpus=2"], 2),
        (["-G2"], 2),
        (["--gpus-per-node=2"], 2),
        (["--gres=gpu:2"], 2),
        (["--gres=gpu"], 1),
    ],
)
def test_gpus_of_any_type_and_a_time_are_enough(site: Site, words: list[str], gpus: int) -> None:
    """A job with untyped GPUs and a time limit is managed, and the line says so."""
    site.beat()
    done = site.run("-t", "2:00:00", *words, "job.sh")
    call = call_of(done)
    what = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    line = f"hadar-sbatch: hadard places this job ({what} of any type, up to 2:00:00)\n"
    assert notes_of(done) == line
    assert "--hold" in call["argv"]
    [comment] = [w.removeprefix("--comment=") for w in call["argv"] if w.startswith("--comment=")]
    description = decode(comment)
    assert description is not None
    assert (description.steps, description.limit_s, description.gpus) == (0, 7200.0, gpus)
    assert description.workload.startswith("job:job.sh (in ")
    assert not description.checkpoint


@pytest.mark.parametrize(
    ("words", "limits", "line"),
    [
        (["--gpus=v100:2", "--time=5"], "n/a|infinite", "2 GPUs of type v100, up to 0:05:00"),
        (["--gres=gpu:K80:1", "-C", "n2"], "90:00|1-0", "1 GPU of type k80, up to 1:30:00"),
        (["--gpus=1"], "n/a|2-0", "1 GPU of any type, up to 2-0:00:00"),
        (["--gpus-per-task=1", "-n2"], "n/a|1:00:00", "2 GPUs of any type, up to 1:00:00"),
    ],
)
def test_what_the_user_allows_is_managed(
    site: Site, words: list[str], limits: str, line: str
) -> None:
    """A named type, features of nodes, GPUs by task, and the time limit of the partition."""
    site.beat()
    done = site.run(*words, "job.sh", LIMITS=limits)
    assert notes_of(done) == f"hadar-sbatch: hadard places this job ({line})\n"
    assert call_of(done)["argv"][1:] == ["--hold", *words, "job.sh"]


HADARD_READS = "hadard reads --gpus, --gpus-per-node, --gpus-per-task and --gres=gpu:N"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--gpus=2"], "no time limit is given (--time), and the partition sets none"),
        (["--time=5"], "no GPUs are requested"),
        (["--time=5", "--gpus=0"], "no GPUs are requested"),
        (["--time=5", "--gres=bandwidth:2"], "no GPUs are requested"),
        (["--time=0", "--gpus=2"], "--time=0 sets no limit"),
        (["--time=UNLIMITED", "--gpus=2"], "--time=UNLIMITED sets no limit"),
        (
            ["--gpus=v100:2,k80:1"],
            "GPUs of several types are requested together (v100, k80)",
        ),
        (
            ["--time=5", "--gpus=h100:2"],
            "GPU type 'h100' is not in this cluster, which has K80, V100",
        ),
        (
            ["--time=5", "--gres=gpu:2,license:1"],
            "--gres=gpu:2,license:1 requests other resources too",
        ),
        (
            ["--time=5", "--gpus=2", "--gres=bandwidth:2"],
            "--gres=bandwidth:2 requests other resources too",
        ),
        (
            ["--time=5", "--gpus=4", "--gres=gpu:1", "-N2"],
            "GPUs are requested twice, with different numbers: --gres for 2 in all, "
            "--gpus for 4 in all",
        ),
        (["--time=5", "--gpus-per-socket=2"], f"--gpus-per-socket is given; {HADARD_READS}"),
        (["--tres-per-task=gres/gpu:2"], f"--tres-per-task is given; {HADARD_READS}"),
        (["--time=5", "--gpus=2", "--nodelist=n1"], "--nodelist is given"),
        (
            ["--time=5", "--gpus=2", "-C", "v100|p100"],
            "--constraint=v100|p100 leaves no node with GPUs",
        ),
        (["--time=5", "--gpus=2", "-C", "n1*1"], "--constraint=n1*1 counts nodes"),
        (
            ["--time=5", "--gpus=2", "-C", "[n1|n2]"],
            "--constraint=[n1|n2] asks for one of several features on all nodes",
        ),
        (["--time=5", "--gpus=2", "--hold"], "--hold is given"),
        (["--time=5", "--gpus=2", ":", "--gpus=1"], "it is a heterogeneous job"),
        (
            ["--time=5", "--nodes=many", "--gpus-per-node=1"],
            "--nodes 'many': expected a whole number, 1 or more",
        ),
        (
            ["--time=5", "--gpus=64"],
            "no nodes of this cluster can hold the gang 64x1, 32x2, 16x4, 8x8, 4x16, 2x32, 1x64 "
            "(GPUs per node x nodes): it has 4 K80, 4 V100 on 3 nodes",
        ),
        (["--time=5", "--gpus=2", "--no-hadar"], "--no-hadar is given"),
        (["--time=5", "--gpus=a\nb:2"], "no GPU types: a\\nb"),
    ],
)
def test_other_jobs_are_sbatch_s_alone(site: Site, words: list[str], why: str) -> None:
    """Jobs that hadard cannot place, or with fixed nodes, are passed on to sbatch unchanged.

    One line says why.
    """
    site.beat()
    done = site.run(*words, "job.sh")
    assert call_of(done)["argv"] == [*(word for word in words if word != "--no-hadar"), "job.sh"]
    assert notes_of(done) == left(why)
    told = json.loads(site.run("--hadar-json", *words, "job.sh").stdout)
    assert (told["taken"], told["why"]) == (False, why.replace("\\n", "\n"))


def test_a_comment_that_leaves_no_room_is_sbatch_s_alone(site: Site) -> None:
    site.beat()
    words = ["--time=5", "--gpus=2", f"--comment={'x' * 1100}", "job.sh"]
    done = site.run(*words)
    assert call_of(done)["argv"] == words
    assert notes_of(done).startswith("hadar-sbatch: plain Slurm places this job: ")
    assert "shorten --comment" in notes_of(done)
    assert notes_of(done).count("\n") == 1


def test_the_owner_s_hold_stays_the_owner_s(site: Site) -> None:
    """A job submitted with --hold is described, but not marked as held by hadard."""
    site.beat()
    done = site.run(*OWN, "--hold", "job.sh")
    assert call_of(done)["argv"].count("--hold") == 1
    assert '"held"' not in call_of(done)["argv"][0]
    assert notes_of(done) == left("--hold is given")


def test_without_hadard_they_all_are(site: Site) -> None:
    """Without hadard, jobs without hadar-sbatch's options are neither held nor described."""
    lines = [unseen(site), left("hadard places no jobs in partition main")]
    for words, line in zip((PLAIN, ["--partition=main", *PLAIN]), lines, strict=True):
        done = site.run(*words)
        assert call_of(done)["argv"] == words
        assert notes_of(done) == line
        site.beat(partitions=("other",))


def test_a_script_whose_lines_sbatch_would_refuse_is_sbatch_s_to_refuse(site: Site) -> None:
    site.beat()
    (site.root / "job.sh").write_text("#!/bin/sh\n#SBATCH --comment='open\n", encoding="utf-8")
    done = site.run(*PLAIN)
    assert call_of(done)["argv"] == PLAIN
    assert notes_of(done) == left("line 2 of the script: #SBATCH: no closing '")


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ("17\n", 0, "17"),
        ("17;b\n", 0, "17;b"),
        ("18;b\nnodes free: 4\n17\n", 0, "18;b"),
        ("Welcome to 2026\n\nSubmitted batch job 17\nsee ticket 4711\n", 0, "17"),
        ("Submitted batch job 17\r\n2026\n", 0, "17"),
        ("2026\n| a = b |\n17\n\x1b[32mnodes free: 4\n", 0, "17"),
        ("17\n2026\n", 0, "17"),
        ("\x1b[0m17\n\x1b[0m2026\n", 1, "17"),
        ("Your job is 17\n4711\n", 0, ""),
        ("sbatch: error: Invalid account\n", 0, ""),
        ("", 1, ""),
    ],
)
def test_json_has_the_job_in_sbatchs_answer(
    site: Site, answer: str, status: int, named: str
) -> None:
    """Lines of a site's filter or wrapper, also with numbers, name no job; they are not lost."""
    site.command("squeue", "print('Welcome\\n3|None|x\\n17|Resources|(null)')")
    site.command("sbatch", f"import sys; print({answer!r}, end=''); sys.exit({status})")
    done = site.run("--hadar-json", "-N1", "job.sh")
    told = json.loads(done.stdout or "{}")
    assert ";".join(filter(None, (told.get("job"), told.get("cluster")))) == named
    assert bool(told) == bool(named or not status)
    assert (done.returncode, done.stderr) == (status, "" if named else answer)


def test_json_has_the_likeliest_number_where_squeue_does_not_answer(site: Site) -> None:
    """It changes no job by it."""
    site.command("sbatch", "print('2026\\nSubmitted batch job 17\\n2027')")
    assert json.loads(site.run("--hadar-json", "-N1", "job.sh").stdout)["job"] == "17"


@pytest.mark.parametrize("words", [(), ("--hadar-json",)])
def test_a_job_is_held_where_its_number_cannot_be_printed(site: Site, words: tuple[str]) -> None:
    """With a closed output, or one that no program reads, as with sbatch."""
    site.command("scontrol", SCONTROL)
    site.command("squeue", SQUEUE)
    site.beat()
    call = shlex.join([sys.executable, "-m", "hadar_slurm.cli.sbatch", *OWN, *words, "job.sh"])
    for where in (">&-", "| :", ">/dev/full"):
        environment = {**site.environment(), "STATUS_OF_TRIAL": "1", "HADAR_QUIET": "1"}
        done = subprocess.run(
            ["/bin/sh", "-c", f"{call} {where}"],
            env=environment,
            cwd=site.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (done.returncode, notes_of(done)) == (0, "")


def test_what_a_wrapper_of_sinfo_prints_keeps_no_job_from_hadard(site: Site) -> None:
    """Nor does it name nodes or partitions."""
    banner = "print('Welcome\\n\\n| a = b | c |\\n***')\n"
    site.command("sinfo", f"{banner}{SINFO.replace('sys.exit', f'{banner}sys.exit')}")
    site.beat()
    assert notes_of(site.run("-p", "gpu", *OWN, "job.sh")) == TAKEN


@pytest.mark.parametrize("prints", ["", "print('Welcome')", "print('slurm_load_partitions: No')"])
def test_a_sinfo_that_shows_no_nodes_says_nothing_of_them(site: Site, prints: str) -> None:
    """A constraint seemed to leave no node, and copies to have one that suits."""
    site.command("sinfo", prints)
    site.beat()
    for words in (("-C", "n1"), ("--exclude=n2",), ("--exclusive",)):
        assert notes_of(site.run(*OWN, *words, "job.sh")) == TAKEN
    done = site.run(*OWN, "--hadar-copies=auto", "job.sh")
    assert "--hadar-copies auto: sinfo does not list the nodes; give a number" in done.stderr


def test_what_a_wrapper_of_scontrol_prints_excludes_no_node(site: Site) -> None:
    """Lists of nodes are read without it."""
    site.command("scontrol", "print('n1\\nWelcome to n2\\nn3')")
    site.beat()
    many = ",".join(f"n{number}" for number in range(3, 60, 2))
    words = ("-G4", "-N1", "-t9", "--exclusive", "--hadar-types=V100", f"--exclude={many},n[4-50]")
    told = json.loads(site.run(*words, "--hadar-json", "--hadar-dry-run", "job.sh").stdout)
    assert {one["gpu_type"] for one in told["choices"]} == {"V100"}
    description = decode(told["sbatch"][2].removeprefix("--comment="))
    assert description is not None
    assert "n2" in fold_out(description.excludes)
    assert {*fold_out(f"{many},n[4-50]"), "n2"} == {*fold_out(description.excludes)}
