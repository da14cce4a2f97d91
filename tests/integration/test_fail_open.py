"""No job waits for a hadard that is dead, hung, disabled or cannot write: docs/fail-open.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread

import pytest
from integration.site import HADAR, HADARD, LIMIT_S, REPORT, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.plan import Plan
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.jobspec.description import decode
from hadar_slurm.jobspec.request import Request
from hadar_slurm.journal import Line
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.state.heartbeat import write_heartbeat
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
# Every V100 of the cluster: a job with throughputs on V100s only then waits under a hold.
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test
N1 = Gang.of({("n1", "v100"): 2})


def config_of(site: Site) -> str:
    """Return the path of the daemon's configuration."""
    return str(site.hadard.directory / "hadar.yaml")


def configure(site: Site, **changes: object) -> str:
    """Write the daemon's configuration and return its path."""
    path = Path(config_of(site))
    lines = {"journal": site.hadard.journal, **site.config(**changes)}
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return str(path)


def release(site: Site, *options: str, status: int = 0) -> dict[str, object]:
    """Run `hadar release`, which must end with `status`, and return its answer."""
    done = site.run([*HADAR, "release", "--config", config_of(site), "--json", *options])
    assert done.returncode == status, done.stderr + done.stdout
    told: dict[str, object] = json.loads(done.stdout)
    return told


def rest(site: Site, *options: str, name: str = "rest") -> JobId:
    """Submit a described job that only sleeps, with throughputs on V100s only."""
    return site.train(V100_ONLY, *options, steps=LONG, script=site.script(name, "exec sleep 600"))


def waiting_job(site: Site, **changes: object) -> JobId:
    """Start hadard and submit a job that it holds while no V100 is free; P100s are free."""
    site.occupy(**ALL_V100)
    site.start(round_seconds=1, **changes)
    job = rest(site)
    site.until_rounds(1)
    assert site.queue()[job].is_held_by_user
    return job


def until_plain_slurm_starts(site: Site, job: JobId) -> None:
    """Wait until a job runs with its own request, on nodes that no plan would choose."""
    site.until_running(job)
    row = site.queue()[job]
    assert set(site.tree(job)) <= {"n3", "n4", "n5", "n6"}
    assert (row.gpus_otherwise, row.gpus_per_node, row.requested_nodes) == ((("gpu", 2),), (), ())


def expire(site: Site) -> None:
    """Let the heartbeat expire, as it would after half a minute."""
    beat = read_heartbeat(site.run_dir)
    assert beat is not None
    write_heartbeat(site.run_dir, replace(beat, good_until_s=time.time() - 1))


def test_what_a_stopped_hadard_held_starts_in_seconds(site: Site) -> None:
    """At SIGTERM hadard restores the job itself; `hadar release` does nothing while it runs."""
    job = waiting_job(site)
    kept = {"released": [], "failed": [], "kept_for": "hadard is at work"}
    assert release(site, status=1) == kept
    assert site.queue()[job].is_held_by_user
    site.hadard.stop()
    assert not site.queue()[job].is_held
    assert "jobs given back to plain Slurm: 1" in site.hadard.log.read_text()
    until_plain_slurm_starts(site, job)
    assert release(site)["released"] == []


@pytest.mark.slow
def test_the_reaper_gives_a_killed_hadard_its_time(site: Site) -> None:
    """`hadar release --expired` restores jobs only after the last heartbeat has expired."""
    job = waiting_job(site, alive_seconds=8)
    site.kill(site.hadard)
    assert release(site, "--expired")["kept_for"] == "hadard was alive a moment ago"
    assert site.queue()[job].is_held_by_user
    killed_s = time.time()
    eventually(lambda: release(site, "--expired")["released"] == [job], "released")
    assert time.time() < killed_s + 8 + LIMIT_S / 2
    until_plain_slurm_starts(site, job)
    assert read_heartbeat(site.run_dir) is None
    assert site.newest()["expired"] == 0
    before = len(site.lines())
    site.start()
    eventually(lambda: len(site.lines()) > before, "a round")
    assert site.newest()["expired"] == 1


def test_a_sign_of_life_is_good_for_half_a_minute(site: Site) -> None:
    """A heartbeat is fresh for 30 s; the reaper, every 15 s, acts within 45 s of the last one."""
    site.start()
    for _ in range(2):
        beat = read_heartbeat(site.run_dir)
        assert beat is not None
        assert time.time() + 25 < beat.good_until_s <= time.time() + 30
        last = beat.good_until_s

        def is_newer(last: float = last) -> bool:
            beat = read_heartbeat(site.run_dir)
            return beat is not None and beat.good_until_s > last

        eventually(is_newer, "a new sign of life", 10)


def test_a_hung_hadard_keeps_nobody_waiting(site: Site) -> None:
    """The reaper restores jobs of a hung hadard, which leaves them running when it continues."""
    job = waiting_job(site)
    process = site.hadard.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        expire(site)
        assert release(site, "--expired")["released"] == [job]
        until_plain_slurm_starts(site, job)
        held = site.gpus(job)
    finally:
        process.send_signal(signal.SIGCONT)
    site.until_rounds(3)
    assert (site.state(job), site.gpus(job), site.queue()[job].restarts) == ("RUNNING", held, 0)


class Dead(BaseException):
    """Stands for the kill of hadard."""


@dataclass(frozen=True, slots=True)
class Mortal(Runner):
    """A runner whose process dies before the first batch with a word that begins with `before`."""

    before: str = ""
    died: list[str] = field(default_factory=list)

    def complaints(self, argv: Sequence[str], *, stdin: str) -> str:
        """Make the changes, or raise Dead."""
        if any(word.startswith(self.before) for word in stdin.split()):
            self.died.append(self.before)
            raise Dead
        return Runner.complaints(self, argv, stdin=stdin)


@pytest.mark.parametrize("before", ["TresPerNode=", "release"])
@pytest.mark.parametrize("is_moving", [False, True], ids=["start", "move"])
def test_a_job_left_in_the_middle_of_a_move_starts(
    site: Site, before: str, is_moving: bool
) -> None:
    """A job left held, with a cleared request or pinned, gets its own request back and starts."""
    configure(site)
    script = site.script("rest", "trap '' USR1", REPORT, "sleep 600")
    job = site.train(EQUAL, held=True, steps=LONG, script=script)
    if is_moving:
        carry_out(site, site.runner, job, Gang.of({("n3", "p100"): 2}))
        site.until_running(job)
        eventually(lambda: site.steps(job) > 0, "its report")
    own = site.runner
    runner = Mortal(own.slurm_conf, own.timeout_s, own.environment, before=before)
    with pytest.raises(Dead):
        carry_out(site, runner, job, N1)
    assert site.queue()[job].is_held_by_user
    expire_any(site)
    assert release(site)["released"] == [job]
    site.until_running(job)
    row = site.queue()[job]
    assert (row.gpus_otherwise, row.gpus_per_node, row.requested_nodes) == ((("gpu", 2),), (), ())
    assert len(site.gpus(job)) == 2


def carry_out(site: Site, runner: Runner, job: JobId, gang: Gang) -> None:
    """Place a job on a gang with a backend in this process."""
    backend = site.backend(runner, grace_s=0.5)
    plan = Plan.of({job: Allocation.rigid(gang)}, {})
    backend.apply(reconcile(backend.observe(), plan))


def expire_any(site: Site) -> None:
    """Let the heartbeat expire, if there is one."""
    if read_heartbeat(site.run_dir) is not None:
        expire(site)


def test_a_pinned_job_that_never_ran_gets_its_nodes_back(site: Site) -> None:
    """A job that requests two nodes, or any number, is not left with the one node of its pin."""
    configure(site)
    script = site.script("rest", "exec sleep 600")
    two = site.train(EQUAL, "--gpus=4", "--nodes=2", held=True, steps=LONG, gpus=4, script=script)
    any_number = site.train(EQUAL, held=True, steps=LONG, gpus=4, script=script)
    backend = site.backend(Mortal(site.cluster.slurm_conf, before="release"))
    gangs = {two: Gang.of({("n1", "v100"): 4}), any_number: Gang.of({("n2", "v100"): 4})}
    plan = Plan.of({job: Allocation.rigid(gang) for job, gang in gangs.items()}, {})
    with pytest.raises(Dead):
        backend.apply(reconcile(backend.observe(), plan))
    # From now on no node has four GPUs free.
    site.occupy(n1="gpu:1", n2="gpu:1", n3="gpu:1", n4="gpu:1", n5="gpu:1")
    expire_any(site)
    assert set(release(site)["released"]) == {two, any_number}  # type: ignore[call-overload]
    site.until_running(two, any_number)
    assert len({gpu.node for gpu in site.gpus(two)}) == 2
    assert [len(site.gpus(job)) for job in (two, any_number)] == [4, 4]


def test_a_job_that_has_run_gets_as_many_gpus_as_it_asked_for(site: Site) -> None:
    """A job gets the two GPUs on one node that it requested, though Slurm forgets the limit."""
    configure(site)
    script = site.script("rest", "trap '' USR1", REPORT, "sleep 600")
    job = site.train(EQUAL, "--nodes=1", "--gres=gpu:2", steps=LONG, script=script)
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, "its report")
    with pytest.raises(Dead):
        carry_out(
            site,
            Mortal(site.cluster.slurm_conf, 30.0, site.runner.environment, before="release"),
            job,
            Gang.of({("n3", "p100"): 2}),
        )
    expire_any(site)
    assert release(site)["released"] == [job]
    site.until_running(job)
    assert len(site.gpus(job)) == 2


def test_a_lost_ledger_leaves_no_job_held(site: Site) -> None:
    """Without a ledger a hold on a described job counts as hadard's."""
    job = waiting_job(site)
    site.kill(site.hadard)
    shutil.rmtree(site.state_dir)
    expire(site)
    assert release(site)["released"] == [job]
    until_plain_slurm_starts(site, job)


def test_the_next_hadard_gives_back_what_it_may_no_longer_place(site: Site) -> None:
    """A new hadard that no longer enforces releases the jobs that the former one held."""
    job = waiting_job(site)
    site.kill(site.hadard)
    site.start(partitions="{main: observe}")
    until_plain_slurm_starts(site, job)


def reload(site: Site, **changes: object) -> None:
    """Change the daemon's configuration file and send it SIGHUP."""
    configure(site, **changes)
    assert site.hadard.process is not None
    site.hadard.process.send_signal(signal.SIGHUP)


def logged(site: Site, text: str) -> bool:
    """Return whether the daemon's log holds a text."""
    return text in site.hadard.log.read_text()


def test_a_new_mode_is_heeded_and_a_wrong_file_is_not(site: Site) -> None:
    """An invalid configuration changes nothing; a valid one that stops enforcing restores jobs."""
    job = waiting_job(site)
    reload(site, mode="enforcing")
    eventually(lambda: logged(site, "the configuration stays as it was"), "refused")
    reload(site, mode="observe", journal="/proc/of-nobody/journal.jsonl")
    eventually(lambda: logged(site, "/proc/of-nobody"), "refused for its journal")
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    reload(site, mode="observe")
    until_plain_slurm_starts(site, job)
    assert logged(site, "the configuration was read again")
    later = rest(site, name="later")
    assert not site.queue()[later].is_held_by_user


def install_policy(directory: Path, source: str) -> Path:
    """Install the policy `broken` as a package does, and return the file that names it."""
    (directory / "broken.py").write_text(source)
    metadata = directory / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    points = metadata / "entry_points.txt"
    points.write_text("[hadar_slurm.policies]\nbroken = broken:make\n")
    return points


def test_a_policy_that_cannot_be_made_changes_nothing(site: Site, tmp_path: Path) -> None:
    """hadard keeps its policy if a new one fails to load; `hadar release` needs no policy."""
    site.environment["PYTHONPATH"] = str(tmp_path)
    job = waiting_job(site)
    points = install_policy(tmp_path, "def make(options):\n    raise RuntimeError('no licence')\n")
    reload(site, policy="broken")
    eventually(lambda: logged(site, "no licence"), "refused for its policy")
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    site.kill(site.hadard)
    points.unlink()
    release(site, "--force")
    until_plain_slurm_starts(site, job)


NO_PLAN = """
class Broken:
    name = "broken"

    def plan(self, snapshot, round_):
        raise RuntimeError("no plan")


def make(options):
    return Broken()
"""


def test_rounds_that_always_fail_are_no_sign_of_life(site: Site, tmp_path: Path) -> None:
    """The reaper gives back the jobs of a hadard that runs on so, and no new job is held."""
    site.environment["PYTHONPATH"] = str(tmp_path)
    job = waiting_job(site, alive_seconds=8)
    install_policy(tmp_path, NO_PLAN)
    reload(site, policy="broken", alive_seconds=8)
    eventually(lambda: logged(site, "RuntimeError: no plan"), "rounds fail")
    reaper = [*HADAR, "release", "--expired", "--config", config_of(site)]

    def is_given_back() -> bool:
        site.run(reaper)
        return not site.queue()[job].is_held

    eventually(is_given_back, lambda: site.run(reaper).stderr + site.told(job))
    until_plain_slurm_starts(site, job)
    later = rest(site, name="later")
    assert not site.queue()[later].is_held_by_user


def test_a_daemon_that_reads_its_configuration_again_is_not_gone(site: Site) -> None:
    """The heartbeat is present during a reload, so that new jobs are still submitted for hadard."""
    job = waiting_job(site)
    looks, absences, is_over = 0, 0, Event()

    def watch() -> None:
        nonlocal looks, absences
        while not is_over.is_set():
            looks += 1
            absences += read_heartbeat(site.run_dir) is None

    watcher = Thread(target=watch)
    watcher.start()
    try:
        reload(site, round_seconds=7)
        eventually(lambda: logged(site, "the configuration was read again"), "read again")
        eventually(lambda: site.newest()["length_s"] == 7, "a round by the new one")
    finally:
        is_over.set()
        watcher.join()
    assert (looks > 100, absences) == (True, 0)
    assert site.queue()[job].is_held_by_user


def test_the_disable_file_stops_all_enforcement_at_once(site: Site) -> None:
    """The disable file restores held jobs and prevents new holds; its removal resumes enforcing."""
    job = waiting_job(site)
    off = Path(str(site.config()["disable_file"]))
    off.touch()
    until_plain_slurm_starts(site, job)
    beat = read_heartbeat(site.run_dir)
    assert beat is not None
    assert beat.partitions == ()
    later = rest(site, name="later")
    site.until_running(later)
    assert site.queue()[later].requested_nodes == ()
    off.unlink()

    def is_on() -> bool:
        beat = read_heartbeat(site.run_dir)
        return beat is not None and beat.partitions != ()

    eventually(is_on, "enforcing again")
    held = rest(site, name="held")
    site.until_rounds(2)
    assert site.queue()[held].is_held_by_user
    assert site.queue()[job].restarts == site.queue()[later].restarts == 0


def plans_of(site: Site, mode: str) -> list[Line]:
    """Return the plans in the journal's lines of a mode."""
    lines = read_journal(site.hadard.journal)
    return [line["plan"] for line in lines if line["mode"] == mode and line["plan"] is not None]


def test_observing_touches_nothing(site: Site) -> None:
    """Mode `observe` makes plans and a journal, changes no job, and creates no ledger."""
    site.start(mode="observe")
    job = rest(site)
    site.until_running(job)
    assert site.queue()[job].requested_nodes == ()
    eventually(lambda: any(job in plan for plan in plans_of(site, "observe")), "a plan with it")
    assert not site.state_dir.exists()


def test_advice_holds_and_pins_nothing(site: Site) -> None:
    """Mode `advise` sets the preferred GPU type of a pending job, and neither holds nor pins it."""
    site.start(mode="advise")
    # It is planned for, and waits: no node has as many cores free.
    most = ("-N6", "--ntasks-per-node=15", "--wrap=sleep 600")
    site.until_running(site.submit(*most, command=["sbatch"]))
    job = rest(site, "--cpus-per-task=4")
    eventually(lambda: " Prefer=v100 " in site.details()[job], lambda: site.told(job))
    assert any(job in plan for plan in plans_of(site, "advise"))
    row = site.queue()[job]
    assert not row.is_held_by_user
    assert (row.requested_nodes, row.gpus_otherwise) == ((), (("gpu", 2),))


def test_nothing_is_held_or_pinned_that_cannot_be_written_down(site: Site) -> None:
    """Without a writable ledger running jobs stay, and new ones start under plain Slurm."""
    site.start()
    runs = site.train(EQUAL, steps=LONG, script=site.script("rest", "exec sleep 600"))
    site.until_running(runs)
    before = site.gpus(runs)
    ledger = site.state_dir / "ledger.json"
    ledger.unlink()
    ledger.mkdir()  # no file can replace it
    waits = rest(site, name="waits")
    site.until_running(waits)
    row = site.queue()[waits]
    assert (row.gpus_otherwise, row.gpus_per_node, row.requested_nodes) == ((("gpu", 2),), (), ())

    def says_so() -> bool:
        beat = read_heartbeat(site.run_dir)
        return beat is not None and beat.partitions == () and "ledger" in beat.problems

    eventually(says_so, "new jobs are not to be held")
    assert site.gpus(runs) == before
    ledger.rmdir()
    eventually(lambda: not says_so(), "enforcing again")
    placed = rest(site, name="placed")
    site.until_running(placed)
    assert len(site.queue()[placed].requested_nodes) == 1


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Give a directory with room for some kilobytes; skip the test where it cannot be mounted."""
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,mode=0755", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_under_the_journal_stops_no_round(site: Site) -> None:
    """Jobs are placed although the journal cannot be written, and the log reports it."""
    with small_disk(site.directory / "disk") as disk:
        (disk / "fill").write_bytes(b"x" * 12_000)
        journal = disk / "journal.jsonl"
        path = configure(site, journal=journal)
        log = site.directory / "full.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*HADARD, "--config", path],
                env=site.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            eventually(lambda: b"rounds are not recorded" in log.read_bytes(), log.read_text)
            job = site.train(EQUAL, steps=LONG, script=site.script("rest", "exec sleep 600"))
            site.until_running(job)
            assert len(site.queue()[job].requested_nodes) == 1
            assert process.poll() is None
            whole = journal.read_text()
            assert whole == "" or whole.endswith("\n")
        finally:
            process.terminate()
            process.wait(30)


def test_the_ledger_is_written_before_the_hold(site: Site) -> None:
    """The entry with the job's own request is recorded before the job is held and pinned."""
    configure(site)
    script = site.script("rest", "exec sleep 600")
    job = site.train(EQUAL, held=True, steps=LONG, script=script)
    with pytest.raises(Dead):
        carry_out(site, Mortal(site.cluster.slurm_conf, before="uhold"), job, N1)
    claim = Ledger(site.state_dir / "ledger.json")[job]
    assert claim.state is State.PINNING
    assert isinstance(claim.own, Request)
    # Written with a colon before 24.11.
    assert (claim.own.per_job.replace("/", ":"), claim.own.nodes) == ("gres:gpu:2", ())
    assert not wait_until(lambda: site.state(job) != "PENDING", 0.5)


@pytest.mark.parametrize("verb", ["uhold", "hold"], ids=["owner", "operator"])
def test_a_pin_goes_under_anothers_hold_and_the_hold_stays(site: Site, verb: str) -> None:
    """A pin is removed under a foreign hold, which stays; released, the job starts as submitted."""
    configure(site)
    job = site.train(EQUAL, held=True, steps=LONG, script=site.script("rest", "exec sleep 600"))
    with pytest.raises(Dead):
        carry_out(site, Mortal(site.cluster.slurm_conf, before="release"), job, N1)
    # The owner releases the job; it waits for the nodes of its pin, and is then held.
    site.occupy(**ALL_V100)
    site.run(["scontrol", "release", job])
    backend = site.backend()
    backend.ledger.see(backend.slurm, [site.queue()[job]])
    backend.ledger.note({})
    assert backend.ledger[job].state is State.RELEASED
    site.run(["scontrol", verb, job])
    held = site.queue()[job]
    assert (held.is_held, held.requested_nodes) == (True, ("n1",))
    expire_any(site)
    assert release(site)["failed"] == []
    row = site.queue()[job]
    assert (row.is_held, row.reason) == (True, held.reason)
    assert (row.gpus_otherwise, row.gpus_per_node, row.requested_nodes) == ((("gpu", 2),), (), ())
    site.run(["scontrol", "release", job])
    until_plain_slurm_starts(site, job)


@pytest.mark.parametrize("by_hadard", [False, True], ids=["reaper", "hadard"])
def test_a_hold_that_comes_when_the_job_runs_is_taken_back(site: Site, by_hadard: bool) -> None:
    """A hold that raced with the job's start is released; a later hold of the owner stays."""
    configure(site)
    job = site.train(EQUAL, held=True, steps=LONG, script=site.script("rest", "exec sleep 600"))
    site.backend().ledger.note({job: Claim(state=State.HOLDING)})
    site.run(["scontrol", "release", job])
    site.until_running(job)
    site.run(["scontrol", "uhold", job])
    assert site.queue()[job].is_held_as_it_runs
    if by_hadard:
        site.start(round_seconds=1)
    else:
        expire_any(site)
        assert release(site)["failed"] == []
    eventually(lambda: not site.queue()[job].is_held_as_it_runs, lambda: site.told(job))
    assert site.queue()[job].restarts == 0
    if by_hadard:
        site.until_rounds(2)
    site.run(["scontrol", "uhold", job])
    if by_hadard:
        site.until_rounds(2)
    else:
        assert release(site)["failed"] == []
    assert site.queue()[job].is_held_as_it_runs


def test_nodes_that_a_user_excludes_stay_excluded(site: Site) -> None:
    """While hadard steers the job, and after the documented script has given it back without it."""
    hadard = site.start(mode="steer")
    site.occupy(n1="gpu:4", n6="gpu:v100:2")
    words = (
        "--hadar-throughput=v100=20,p100=20",
        "--hadar-steps=100",
        "--gpus=1",
        "-C",
        "v100|p100",
    )
    words = (*words, "--comment=it's my own")
    job = site.submit(*words, "--hadar-types=v100", "-x", "n2,n5", "--wrap=sleep 600")
    before = site.queue()[job].comment

    def excluded() -> str:
        text = site.runner.run(["scontrol", "show", "job", "-o", job])
        return next(word for word in text.split() if word.startswith("ExcNodeList="))

    eventually(lambda: excluded() == "ExcNodeList=n[2-6]", excluded)
    mark = "[hadar:ExcNodeList=n[2,5]]"
    eventually(lambda: site.queue()[job].mark == mark, lambda: site.queue()[job].mark)
    site.kill(hadard)
    shutil.rmtree(site.state_dir)
    page = Path(__file__).parents[2] / "docs" / "operators.md"
    [script] = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    assert site.run(["bash", "-c", script]).returncode == 0
    row = site.queue()[job]
    assert (excluded(), row.mark) == ("ExcNodeList=n[2,5]", "")
    assert decode(row.comment) == decode(before)
    assert release(site) == {"released": [], "failed": [], "kept_for": ""}
