"""hadard under random actions of users and operators and random faults: no job must suffer."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, Rejected, parse_gpus
from fakes.fake_tools import UNREACHABLE, FakeRunner, Killed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.actions import Stop
from hadar_slurm.engine.loop import RoundRecord, run_round
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, decode_or_none
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.sim.onward import begins
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.scontrol import shows_invented_max_nodes
from hadar_slurm.slurm.enforce.claim import State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.readings import UNSEEN_S
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.slurm.enforce.restore import Returned
from hadar_slurm.slurm.settings import BackendSettings

NODES = "v100:4,v100:2,p100:4,v100:2+k80:2"
# Jobs of the second partition, which is n3, are observed only.
PARTITIONS = {"other": ["n3"]}
MODES = Modes(Mode.HOLD, {"other": Mode.OBSERVE})
VERSIONS = ((22, 5, 8), (24, 11, 5), (26, 5, 5))
RATES = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
STEPS = 1000
WORK_S = 400.0
PIN_TIMEOUT_S = 60.0
# Longer than Slurm's delay after a requeue and all timeouts of hadard.
LONG_S = 400.0
USERS = ("alice", "bob")
# The reasons for which hadard may keep a job held; any other could last without limit.
FAIR_REASONS = (
    WaitReason.INSUFFICIENT,
    WaitReason.WOULD_TIE,
    WaitReason.OUTBID,
    WaitReason.LIMITED,
)

# Users' requests to sbatch, by name.
REQUESTS: dict[str, Asked] = {
    "any": Asked(per_job=parse_gpus("gpu:2")),
    "any of 4": Asked(per_job=parse_gpus("gpu:4")),
    "one": Asked(per_job=parse_gpus("gpu:1")),
    "typed": Asked(per_job=parse_gpus("gpu:p100:2")),
    "two nodes": Asked(per_job=parse_gpus("gpu:4"), min_nodes=2, max_nodes=2),
    "per node": Asked(per_node=parse_gpus("gpu:2"), min_nodes=1, max_nodes=1),
    "per node, two": Asked(per_node=parse_gpus("gpu:1"), min_nodes=2, max_nodes=2),
    "two types": Asked(per_node=parse_gpus("gpu:v100:1,gpu:k80:1"), min_nodes=1, max_nodes=1),
}
# The same as hadar-sbatch writes them into the description.
ASKS = {
    "typed": {"gpus": "p100:2"},
    "two nodes": {"gpus": "4", "nodes": "2"},
    "per node": {"gpus-per-node": "2", "nodes": "1"},
    "per node, two": {"gres": "gpu:1", "nodes": "2-2"},
    "two types": {"gres": "gpu:v100:1,gpu:k80:1", "nodes": "1"},
}
SIZES = {"any of 4": 4, "one": 1, "two nodes": 4}
JOBS = st.integers(0, 30)
TABLE = parse_table(data_file("throughputs.json").read_text(), "throughputs.json")


@dataclass
class Own:
    """The expected state of a described job: its owner's request and hold.

    After a loss of the ledger, the origin of a hold is unknown (`is_held` is None), and the exact
    request of a pinned job cannot be restored (`is_exact` is False).
    """

    asked: Asked
    is_held: bool | None = False
    is_exact: bool = True
    # An operator's hold, which only operators can release.
    is_kept: bool = False
    # When slurmctld may have forgotten hadard's release: without a reading for ten
    # minutes the hold counts as the owner's.
    forgotten_s: float = math.inf


@dataclass
class Trouble:
    """A fault, `kind`, in the `left`-th command, with `lasts` also in all later ones."""

    left: int
    kind: str
    lasts: bool = False

    def __call__(self, argv: Sequence[str]) -> str | None:
        """Count a command; if it is to fail, return its error or raise Killed."""
        self.left -= 1
        if self.left > 0 or (self.left < 0 and not self.lasts):
            return None
        if self.kind == "killed":
            raise Killed
        return {
            "unreachable": f"slurm_update error: {UNREACHABLE}",
            "refused": "Access/permission denied",
        }[self.kind]


@dataclass
class Memory:
    """The state of a daemon process, which is lost when the process ends."""

    backend: SlurmBackend
    memory: object = None
    is_worn: bool = False


class Daemon(RuleBasedStateMachine):
    """One cluster, its users, its operator, and hadard."""

    mode, modes = Mode.HOLD, MODES

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="hadar-machine-"))
        self.policy: Policy = make_policy("hadar")
        self.own: dict[str, Own] = {}
        # The jobs that were signalled, according to the ledger.
        self.sent: set[str] = set()
        # Stops by hadard that a job's description does not allow.
        self.too_much: list[str] = []

    def teardown(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.directory)

    @initialize(version=st.sampled_from(VERSIONS))
    def begin(self, version: tuple[int, int, int]) -> None:
        """Start a cluster and a daemon."""
        self.fake = FakeSlurm(
            NODES, version=version, spool=self.directory / "spool", partitions=PARTITIONS
        )
        self.runner = FakeRunner(slurm=self.fake)
        self.daemon = self.new_daemon()

    def new_daemon(self) -> Memory:
        """Return a daemon that has just started."""
        settings = BackendSettings(
            spool=self.directory / "spool",
            modes=self.modes,
            restart_cost_s=1.0,
            grace_s=5.0,
            pin_timeout_s=PIN_TIMEOUT_S,
        )
        return Memory(
            SlurmBackend(
                CommandLine(self.runner),
                TABLE,
                settings,
                self.open_ledger(),
                self.mode,
                foresee=self.foresee,
                now_s=lambda: self.fake.now_s,
                sleep=self.fake.advance,
            )
        )

    def foresee(self, snapshot: Snapshot) -> dict[JobId, Gang]:
        """Return the gangs of the next starts, as hadard foresees them, within 100 rounds or so."""
        looks = count()
        found = begins(
            snapshot,
            self.policy,
            is_enough=lambda begun: len(begun) >= 4,
            round_s=360.0,
            is_late=lambda: next(looks) > 100,
        )
        return {job: begin.gang for job, begin in found.items()}

    def open_ledger(self) -> Ledger:
        """Open the ledger."""
        return Ledger(self.directory / FILE_NAME, lambda: self.fake.now_s)

    # Actions of hadard.

    def one_round(self) -> RoundRecord:
        """Run a round that may migrate jobs; pending faults are removed at its end."""
        daemon = self.daemon
        round_ = Round(0, self.fake.now_s, 360.0, memory=daemon.memory)
        self.runner.before.insert(0, self.watch_bounds)
        try:
            line = run_round(daemon.backend, self.policy, round_, wake="test", clock=lambda: 0.0)
        finally:
            self.runner.before.clear()
            ledger = self.open_ledger()
            self.sent = {key for key in self.own if ledger[JobId(key)].signalled_run}
        assert all("Invalid" not in error for error in line.errors), line.errors
        assert self.too_much == []
        daemon.memory = line.plan.memory if line.plan else daemon.memory
        return line

    @rule(number=JOBS)
    def stop(self, number: int) -> None:
        """Some policy stops a job, whether it may be stopped or not."""
        backend = self.daemon.backend
        jobs = [job for job in backend.observe().jobs if job.allocation]
        self.runner.before.insert(0, self.watch_bounds)
        for job in jobs[number % len(jobs) :][:1] if jobs else ():
            backend.apply([Stop(job.job_id, 0, job.allocation.gangs[0])])
        self.runner.before.clear()
        assert self.too_much == []

    def watch_bounds(self, argv: Sequence[str]) -> None:
        """Note stops of jobs with a bound on lost work by a signal, or before twice the bound."""
        if argv[0] != "scancel" and argv[1] != "requeuehold":
            return
        for [job] in (self.fake.find(word) for word in argv if word in self.own):
            described = decode_or_none(job.comment)
            loss_s = described.restart_loss_s if described is not None else 0.0
            ran_s = self.fake.now_s - job.started_s
            if loss_s and (argv[0] == "scancel" or (job.state == "RUNNING" and ran_s < 2 * loss_s)):
                self.too_much.append(f"{argv} after {ran_s:g} s: {job}")

    @rule()
    def round(self) -> None:
        """After a round without faults every held job is planned or waits for an allowed reason.

        And jobs that died of hadard's signal are requeued, unless the ledger was lost.
        """
        dead = [job for job in self.fake.jobs if job.state == "FAILED" and job.key in self.own]
        line = self.one_round()
        assert [job.key for job in dead if job.state == "FAILED" and job.key in self.sent] == []
        assert not line.errors
        assert line.snapshot is not None
        assert line.plan is not None
        waiting = dict(line.plan.waiting)
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            if job.state != "PENDING" or not job.hold or self.is_for_later(job):
                continue
            if own.is_held is not False or own.is_kept or not self.have_nodes_reported:
                continue
            if self.is_hopeless(job, own):
                continue
            assert key in line.snapshot.by_id, f"{key} is held by nobody's will: {job}"
            assert waiting.get(JobId(key), WaitReason.OUTBID) in FAIR_REASONS, (
                f"{key} waits for ever"
            )

    @rule(left=st.integers(1, 25), kind=st.sampled_from(("unreachable", "refused")))
    def round_with_a_failure(self, left: int, kind: str) -> None:
        """One command of a round fails."""
        self.runner.before.append(Trouble(left, kind))
        self.one_round()

    @rule(left=st.integers(1, 25))
    def round_that_loses_slurm(self, left: int) -> None:
        """After some command slurmctld no longer answers."""
        self.runner.before.append(Trouble(left, "unreachable", lasts=True))
        self.one_round()

    @rule(batch=st.integers(1, 3))
    def round_amid_releases(self, batch: int) -> None:
        """Before a batch of changes every owner releases their jobs, and time advances."""
        self.let_owners_release(batch)
        self.one_round()

    def let_owners_release(self, batch: int) -> None:
        """Let every owner release their jobs right before the `batch`-th batch of changes."""
        left, was_change = batch, False

        def meddle(argv: Sequence[str]) -> None:
            nonlocal left, was_change
            is_change = argv[1] in ("uhold", "update", "release", "requeuehold")
            is_first, was_change = is_change and not was_change, is_change
            if is_first:
                left -= 1
            if is_first and left == 0:
                self.release_all_jobs()
            else:
                self.fake.advance(0.05)

        self.runner.before.append(meddle)

    def release_all_jobs(self) -> None:
        """Release all pending jobs as their owners."""
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            # Otherwise it waits DELAY_S for the reaper, which is not modelled here.
            is_whole = bool(job.asked.all)
            if (
                job.state == "PENDING"
                and is_whole
                and self.as_owner(job, "scontrol", "release", key)
            ):
                own.is_held = False

    @rule(left=st.integers(1, 30))
    def killed(self, left: int) -> None:
        """hadard is killed between two commands and started again."""
        self.runner.before.append(Trouble(left, "killed"))
        try:
            self.one_round()
        except Killed:
            self.daemon = self.new_daemon()

    @rule()
    def restarted(self) -> None:
        """A new daemon observes the same snapshot as the old one."""
        old, new = self.daemon, self.new_daemon()
        # A new daemon does not have the limits that the old one has learned.
        if not old.is_worn and not self.fake.gpus_per_user:
            assert new.backend.observe() == old.backend.observe()
        self.daemon = new

    @rule()
    def ledger_lost(self) -> None:
        """The ledger is lost: holds are of unknown origin, and none may keep a managed job held.

        What hadard has set on steered jobs may count as their owners'.
        """
        ledger = self.open_ledger()
        claims = {key: ledger[JobId(key)] for key in self.own}
        (self.directory / FILE_NAME).unlink(missing_ok=True)
        self.sent.clear()
        for key, own in list(self.own.items()):
            [job] = self.fake.find(key)
            described = decode_or_none(job.comment)
            # The job can no longer be recognised as managed.
            if described is None:
                del self.own[key]
                continue
            # Of unknown origin are also a hold that raced with the job's start and is still set,
            # and one of a job that gets another request and whose release slurmctld has lost.
            is_told = own.is_held is False and not (
                job.hold and (job.state == "RUNNING" or not described.is_held)
            )
            own.is_held = False if is_told else None
            if claims[key].steers or claims[key].steered:
                own.is_exact = own.is_exact and not job.excluded and not job.nice
                own.asked = replace(own.asked, nodes=job.asked.nodes)
            own.is_exact = own.is_exact and job.asked == own.asked and not job.asked.nodes
        self.daemon = self.new_daemon()

    @rule(left=st.integers(1, 12))
    def released_in_part(self, left: int) -> None:
        """`hadar release` is killed between two commands; a later one continues."""
        self.runner.before.append(Trouble(left, "killed"))
        with suppress(Killed):
            self.let_go()
        self.runner.before.clear()
        self.daemon = self.new_daemon()

    def let_go(self) -> tuple[Returned, ...]:
        """Run `hadar release`."""
        return release_all(
            CommandLine(self.runner),
            self.open_ledger(),
            limit_s=60.0,
            now_s=lambda: self.fake.now_s,
            sleep=self.fake.advance,
        )

    @rule(batch=st.integers(1, 3))
    def released_amid_releases(self, batch: int) -> None:
        """Owners release jobs during `hadar release`; a second run restores the rest."""
        self.let_owners_release(batch)
        try:
            self.let_go()
        finally:
            self.runner.before.clear()
        self.released()

    @rule()
    def released(self) -> None:
        """`hadar release` restores every pending job: its own request, and no hold of hadard."""
        answers = self.let_go()
        faulty = {answer.job: answer.fault for answer in answers if answer.fault}
        for key, own in self.own.items():
            if self.is_hopeless(self.fake.find(key)[0], own):
                faulty.pop(JobId(key), None)  # Slurm holds it again at once
        assert not faulty
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            if job.state == "PENDING" and not self.is_hopeless(job, own):
                is_late = self.fake.now_s >= own.forgotten_s + UNSEEN_S
                if (own.is_held is None or is_late) and not own.is_kept:
                    own.is_held = bool(job.hold)
                is_theirs = own.is_held or own.is_kept
                assert bool(job.hold) == is_theirs, f"{key} is left held, or released: {job}"
                self.check_request(job, own)
        self.daemon = self.new_daemon()

    def check_request(self, job: FakeJob, own: Own) -> None:
        """Fail unless a job has its owner's request, except for types that Slurm keeps."""
        asked = job.asked
        if own.is_exact:
            assert (job.excluded, job.nice) == ((), 0), job
        if not own.is_exact:
            assert asked.nodes in ((), own.asked.nodes), job
            assert asked.all, job
            return
        assert asked.nodes == own.asked.nodes, job
        assert sum(k for _, k in asked.all) == sum(k for _, k in own.asked.all), job
        for name in ("per_node", "per_job", "per_task", "per_socket"):
            now, then = getattr(asked, name) or (), getattr(own.asked, name) or ()
            assert [many for _, many in now] == [many for _, many in then], job
            if not self.fake.keeps_types:
                assert now == then, job
        assert asked.min_nodes <= own.asked.min_nodes or job.restarts, job
        # Where Slurm sets a maximum of nodes itself, it cannot be distinguished from the owner's.
        is_wider = shows_invented_max_nodes(self.fake.version[:2]) and bool(own.asked.per_job)
        assert own.asked.max_nodes in (None, asked.max_nodes) or is_wider, job

    # Actions of users.

    @rule(
        user=st.sampled_from(USERS),
        name=st.sampled_from(sorted(REQUESTS)),
        is_held=st.booleans(),
        partition=st.sampled_from(("main", "main", "other", "main,other")),
        saves=st.booleans(),
        is_later=st.integers(0, 5),
        throughputs=st.sampled_from((RATES, RATES, {"v100": 4.0})),
        loss_s=st.sampled_from((0.0, 0.0, 20.0)),
    )
    def submit(
        self,
        user: str,
        name: str,
        is_held: bool,
        partition: str,
        saves: bool,
        is_later: int,
        throughputs: dict[str, float],
        loss_s: float = 0.0,
    ) -> None:
        """Submit a described job, held if hadard was alive at its submission."""
        gpus = SIZES.get(name, 2)
        described = Description(
            steps=STEPS,
            gpus=gpus,
            asks=ASKS.get(name, {}),
            throughputs=throughputs,
            checkpoint=True,
            restart_loss_s=loss_s,
            is_held=is_held,
        )
        try:
            job = self.fake.submit(
                REQUESTS[name],
                user=user,
                comment=encode(described),
                hold="user" if is_held else "",
                partition=partition,
                work_s=WORK_S,
                steps=STEPS,
                ignores_usr1=not saves,
                begins_s=self.fake.now_s + 30.0 if is_later == 5 else 0.0,
            )
        except Rejected:
            return
        self.own[job.key] = Own(replace(job.asked))

    @rule(gpus=st.integers(1, 4), work_s=st.sampled_from((5.0, 60.0, 300.0)))
    def submit_plain(self, gpus: int, work_s: float) -> None:
        """Submit an unmanaged job."""
        self.fake.submit(Asked(per_job=(("", gpus),)), work_s=work_s, user="carol")

    def chosen(self, number: int) -> FakeJob | None:
        """Return one of the described jobs that have not ended."""
        live = [job for key in self.own for job in self.fake.find(key) if job.is_live]
        return live[number % len(live)] if live else None

    def as_owner(self, job: FakeJob, *argv: str) -> bool:
        """Run a command as a job's owner; return whether it succeeded."""
        runner = FakeRunner(slurm=self.fake, user=job.user)
        return not runner.complaints(argv, stdin="")

    @rule(number=JOBS)
    def cancel(self, number: int) -> None:
        """The owner cancels a job."""
        job = self.chosen(number)
        if job:
            self.as_owner(job, "scancel", job.key)

    @rule(number=JOBS)
    def hold(self, number: int) -> None:
        """The owner holds a pending job that has no hold."""
        job = self.chosen(number)
        ledger = self.daemon.backend.ledger
        if job is None or job.state != "PENDING" or job.hold or not ledger.was_read:
            return
        described = decode_or_none(job.comment)
        claim = ledger[JobId(job.key)]
        # While a job migrates, its hold is hadard's to release. So is one that is marked as
        # hadar-sbatch's, until hadard has changed the job.
        is_marked = described is not None and described.is_held and JobId(job.key) not in ledger
        if not claim.holds and not is_marked:
            self.own[job.key].is_held = self.as_owner(job, "scontrol", "hold", job.key)

    @rule(number=JOBS)
    def hold_as_it_runs(self, number: int) -> None:
        """The owner holds a running job, so that it is held once it is requeued."""
        job = self.chosen(number)
        ledger = self.daemon.backend.ledger
        if job is None or job.state != "RUNNING" or job.hold or not ledger.was_read:
            return
        claim = ledger[JobId(job.key)]
        # Killed between recording a hold and setting it, hadard takes this one for its own.
        is_doubtful = claim.state in (State.HOLDING, State.PINNING, State.RESTORING)
        if not (is_doubtful and set(claim.replaced) == set(job.asked.nodes)):
            self.own[job.key].is_held = self.as_owner(job, "scontrol", "hold", job.key)

    @rule(number=JOBS)
    def operator_holds(self, number: int) -> None:
        """An operator holds a pending job, whether it is held or not."""
        job = self.chosen(number)
        if job and job.state == "PENDING":
            self.own[job.key].is_kept = not self.runner.complaints(
                ["scontrol", "hold", job.key], stdin=""
            )

    @rule(number=JOBS)
    def operator_releases(self, number: int) -> None:
        """An operator releases a job; Slurm has only one hold per job."""
        job = self.chosen(number)
        if job is None or not job.asked.all:
            return  # it waits DELAY_S for the reaper, which is not modelled here
        if not self.runner.complaints(["scontrol", "release", job.key], stdin=""):
            self.own[job.key].is_kept = self.own[job.key].is_held = False

    @rule(number=JOBS)
    def release(self, number: int) -> None:
        """The owner releases a job, whatever the origin of its hold."""
        job = self.chosen(number)
        if job is None or not job.asked.all:
            return  # it waits DELAY_S for the reaper, which is not modelled here
        if self.as_owner(job, "scontrol", "release", job.key):
            self.own[job.key].is_held = False

    @rule(number=JOBS)
    def requeue(self, number: int) -> None:
        """The owner requeues a running job."""
        job = self.chosen(number)
        if job and job.state == "RUNNING":
            self.as_owner(job, "scontrol", "requeue", job.key)

    @rule(number=JOBS, node=st.sampled_from(("n1", "n3")))
    def name_nodes(self, number: int, node: str) -> None:
        """The owner requests a node for a pending job that has no pin."""
        job = self.chosen(number)
        change = f"ReqNodeList={node}"
        if job is None or job.state != "PENDING" or job.asked.nodes or not job.asked.all:
            return
        ledger = self.daemon.backend.ledger
        if not ledger.was_read or ledger[JobId(job.key)].own is not None:
            return  # nodes count as hadard's choice
        if self.as_owner(job, "scontrol", "update", f"JobId={job.key}", change):
            self.own[job.key].asked.nodes = (node,)

    @rule(number=JOBS)
    def leave(self, number: int) -> None:
        """The owner withdraws a job from hadard."""
        job = self.chosen(number)
        described = decode_or_none(job.comment) if job else None
        if job and described:
            comment = encode(replace(described, leaves=True))
            self.as_owner(job, "scontrol", "update", f"JobId={job.key}", f"Comment={comment}")

    @rule(number=JOBS, text=st.sampled_from(('{"hadar":9}', '{"hadar":1,"steps":-1}')))
    def spoil_comment(self, number: int, text: str) -> None:
        """The description in the comment becomes invalid."""
        job = self.chosen(number)
        if job and JobId(job.key) in self.daemon.backend.ledger:
            self.as_owner(job, "scontrol", "update", f"JobId={job.key}", f"Comment={text}")

    @rule(number=JOBS)
    def dies_of_usr1(self, number: int) -> None:
        """A job that claims to handle USR1 will die of it."""
        job = self.chosen(number)
        if job:
            job.dies_of_usr1 = True

    @rule(number=JOBS, text=st.sampled_from((b"", b"{}", b"\xff\x00", b'{"steps_done":-5}')))
    def spoil_report(self, number: int, text: bytes) -> None:
        """A progress report is lost or invalid."""
        job = self.chosen(number)
        path = self.directory / "spool" / str(job.number if job else 0) / "progress.json"
        if path.exists():
            if text:
                path.write_bytes(text)
            else:
                path.unlink()

    # Actions of operators, faults of machines, and time.

    @rule(seconds=st.sampled_from((0.1, 1.0, 5.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        """Advance the time a little."""
        self.advance(seconds)

    @rule()
    def much_time_passes(self) -> None:
        """Advance the time beyond all timeouts."""
        self.advance(LONG_S)

    def advance(self, seconds: float) -> None:
        """Advance the time, and note whether pins may have aged."""
        self.fake.advance(seconds)
        self.daemon.is_worn = self.daemon.is_worn or seconds >= 5.0

    @rule(name=st.sampled_from(("n1", "n2", "n3", "n4")), is_down=st.booleans())
    def node_fails(self, name: str, is_down: bool) -> None:
        """A node fails or is drained."""
        if is_down:
            self.fake.lose_node(name)
        else:
            self.fake.nodes[name].is_drained = True

    @rule(gpus=st.sampled_from((0, 2, 4)))
    def users_are_limited(self, gpus: int) -> None:
        """An operator sets or removes a limit of GPUs per user."""
        self.fake.gpus_per_user = gpus
        self.daemon.is_worn = True

    @rule()
    def nodes_return(self) -> None:
        """All nodes take work again."""
        for node in self.fake.nodes.values():
            node.is_down = node.is_drained = False

    @rule()
    def slurmctld_restarts(self) -> None:
        """slurmctld restarts, and its nodes report some seconds later."""
        self.restart_slurmctld(loses_s=0.0)

    @rule()
    def slurmctld_loses_releases(self) -> None:
        """slurmctld goes away before it has saved the releases and starts of two rounds."""
        self.one_round()
        self.one_round()
        self.restart_slurmctld(loses_s=15.0)

    def restart_slurmctld(self, loses_s: float) -> None:
        """Restart slurmctld, and note which holds are now of unknown origin."""
        held = {job.key for job in self.fake.jobs if job.hold}
        self.fake.restart(loses_s)
        ledger = self.open_ledger()
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            claim = ledger[JobId(key)]
            is_ours = claim.holds or claim.since_s > 0
            if claim.since_s > 0 and not claim.holds:
                own.forgotten_s = claim.since_s
            # Under another slurmctld, an owner's hold after a release of hadard counts as hadard's,
            # and a release that was lost may have been that of an owner's hold.
            if own.is_held if is_ours else bool(job.hold) and key not in held:
                own.is_held = None

    @rule()
    def ended_jobs_are_forgotten(self) -> None:
        """Slurm forgets jobs that ended some time ago."""
        self.fake.forget_ended()
        left = {job.key for job in self.fake.jobs}
        self.own = {key: own for key, own in self.own.items() if key in left}

    def is_hopeless(self, job: FakeJob, own: Own) -> bool:
        """Return whether Slurm holds a job because its owner's nodes cannot satisfy its request."""
        return job.reason == "BadConstraints" and bool(own.asked.nodes)

    @property
    def have_nodes_reported(self) -> bool:
        """Return whether all nodes have reported: before that hadard restores no jobs."""
        return all(node.has_reported for node in self.fake.nodes.values())

    # Invariants.

    def is_for_later(self, job: FakeJob) -> bool:
        """Return whether a job waits for its begin time."""
        return job.begins_s > self.fake.now_s

    @invariant()
    def no_gpu_has_two_jobs(self) -> None:
        """No GPU is allocated to two jobs."""
        if not hasattr(self, "fake"):
            return
        held = [
            (name, gpu_type, number)
            for job in self.fake.jobs
            for name, by_type in job.held.items()
            for gpu_type, numbers in by_type.items()
            for number in numbers
        ]
        assert len(held) == len(set(held))

    @invariant()
    def every_job_that_runs_has_all_its_gpus(self) -> None:
        """Every running job has exactly as many GPUs as its owner requested."""
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            if job.state == "RUNNING":
                in_all = sum(many for _, many in own.asked.per_job or ())
                each = sum(many for _, many in own.asked.per_node or ())
                assert job.num_gpus == in_all + each * own.asked.min_nodes, job

    @invariant()
    def holds_are_operators_where_operators_placed_them(self) -> None:
        """hadard never sets an operator's hold, and never replaces one by its own."""
        for key, own in self.own.items():
            [job] = self.fake.find(key)
            assert (job.hold == "admin") == own.is_kept or not job.is_live, job


class SteeringDaemon(Daemon):
    """The same in mode `steer`."""

    mode, modes = Mode.STEER, Modes(Mode.STEER, {"other": Mode.OBSERVE})


# The faults that this test looks for need several events in one run.
Daemon.TestCase.settings = settings(
    max_examples=4 * settings().max_examples, stateful_step_count=40
)
TestDaemon = Daemon.TestCase
SteeringDaemon.TestCase.settings = Daemon.TestCase.settings
TestSteeringDaemon = SteeringDaemon.TestCase


def test_a_release_between_look_and_change_leaves_no_job_without_gpus() -> None:
    """A release between observation and change must not start the job between the two updates.

    Random runs seldom reach this case.
    """
    for batch in (1, 2):
        steps = Daemon()
        steps.begin((24, 11, 5))
        steps.submit("alice", "any", True, "main", True, 0, RATES)
        steps.round_amid_releases(batch)
        steps.advance(1.0)
        steps.every_job_that_runs_has_all_its_gpus()
        assert [job.num_gpus for job in steps.fake.jobs] == [2]
        steps.teardown()


@pytest.fixture
def steps() -> Iterator[Daemon]:
    """A new cluster whose Slurm keeps GPU types once named."""
    daemon = Daemon()
    daemon.begin((22, 5, 8))
    yield daemon
    daemon.teardown()


def test_a_pinned_job_that_its_owner_holds_is_given_back(steps: Daemon) -> None:
    """hadard is killed after it has released a job: the owner's hold stays, the pin is removed."""
    steps.submit("alice", "per node, two", False, "main", False, 0, RATES)
    steps.round_amid_releases(1)
    steps.killed(5)
    steps.hold(0)
    [job] = steps.fake.jobs
    assert (job.hold, job.asked.nodes) == ("user", ("n2",))
    steps.released()
    assert (job.hold, job.asked.nodes, job.asked.per_node) == ("user", (), parse_gpus("gpu:1"))


def hold_as_it_starts(steps: Daemon) -> FakeJob:
    """Start a job right before hadard's hold, and kill hadard before the next round."""
    steps.submit("alice", "per node, two", False, "main", False, 0, RATES)
    steps.submit("alice", "any", True, "main", False, 0, RATES)
    steps.round_amid_releases(2)
    steps.killed(5)
    job = steps.fake.jobs[1]
    assert (job.state, job.hold) == ("RUNNING", "user")
    return job


def test_a_job_held_as_it_started_is_given_back_when_its_node_fails(steps: Daemon) -> None:
    """A hold that raced with the job's start is released when the job is pending again."""
    job = hold_as_it_starts(steps)
    steps.node_fails("n1", True)
    steps.released()
    assert (job.state, job.hold) == ("PENDING", "")


def test_a_hold_that_came_as_its_job_started_is_taken_back(steps: Daemon) -> None:
    """`hadar release` releases a hold that raced with its job's start."""
    job = hold_as_it_starts(steps)
    steps.released()
    assert (job.state, job.hold) == ("RUNNING", "")


def test_hadard_takes_back_a_hold_that_came_as_its_job_started(steps: Daemon) -> None:
    """hadard releases a hold that raced with the job's start; a later hold of the owner stays."""
    job = hold_as_it_starts(steps)
    steps.round()
    assert (job.state, job.hold) == ("RUNNING", "")
    steps.round()
    steps.as_owner(job, "scontrol", "hold", job.key)
    steps.own[job.key].is_held = True
    steps.node_fails("n1", True)
    steps.released()
    assert (job.state, job.hold) == ("PENDING", "user")


def test_a_hold_placed_while_a_plan_is_made_stays(steps: Daemon) -> None:
    """The job's pin is removed, and the hold set between observation and change stays."""
    steps.submit("alice", "any", True, "main", False, 0, RATES)
    steps.round()
    [job] = steps.fake.jobs
    assert (job.state, job.hold, bool(job.asked.nodes)) == ("PENDING", "", True)
    steps.leave(0)
    steps.daemon.backend.observe()
    steps.fake.hold(job, "user")
    steps.daemon.backend.apply(())
    assert (job.hold, job.asked.nodes) == ("user", ())


def cut(steps: Daemon, name: str = "any") -> FakeJob:
    """Return a held job, with hadard killed after clearing the request and before setting it."""

    def kill(argv: Sequence[str]) -> None:
        if any(word.startswith("NumNodes=") for word in argv):
            raise Killed

    steps.submit("alice", name, True, "main", False, 0, RATES)
    steps.runner.before.append(kill)
    with suppress(Killed):
        steps.one_round()
    steps.daemon = steps.new_daemon()
    [job] = steps.fake.jobs
    if job.asked.all or not job.hold:
        raise RuntimeError(f"it is not cut in two: {job}")
    return job


def test_a_job_cut_in_two_gets_its_request_back_when_the_ledger_is_lost(steps: Daemon) -> None:
    """A described job requests GPUs: without a record, those of its description."""
    job = cut(steps)
    steps.ledger_lost()
    steps.round()
    steps.released()
    assert job.asked.all == parse_gpus("gpu:2")


def test_nodes_of_the_owner_stay_when_the_ledger_is_lost(steps: Daemon) -> None:
    """hadard never requests two types a node, so these are not its pin."""
    steps.round()
    steps.submit("alice", "two types", False, "main", False, 0, RATES)
    steps.name_nodes(0, "n1")
    steps.ledger_lost()
    steps.released()
    [job] = steps.fake.jobs
    assert (job.hold, job.asked.nodes, job.asked.per_node) == (
        "",
        ("n1",),
        parse_gpus("gpu:v100:1,gpu:k80:1"),
    )


def test_a_job_cut_in_two_does_not_start_without_gpus(steps: Daemon) -> None:
    """Its owner releases it before the reaper runs: it waits until its request is restored."""
    job = cut(steps)
    steps.as_owner(job, "scontrol", "release", job.key)
    steps.fake.advance(45.0)
    assert job.state == "PENDING"
    steps.released()
    steps.fake.advance(5.0)
    assert (job.state, job.num_gpus) == ("RUNNING", 2)


def test_the_next_hadard_restores_a_job_cut_in_two_at_once(steps: Daemon) -> None:
    """The begin time that delays it is not taken for its owner's."""
    job = cut(steps)
    steps.round()
    steps.fake.advance(1.0)
    assert (job.state, job.num_gpus) == ("RUNNING", 2)


def test_a_typed_job_cut_in_two_is_placed(steps: Daemon) -> None:
    """22.05.8 accepts no untyped request of a job that has named a type."""
    job = cut(steps, "typed")
    steps.round()
    steps.fake.advance(1.0)
    assert (job.state, dict(job.gpus)) == ("RUNNING", {("n3", "p100"): 2})


def test_a_typed_job_cut_in_two_is_restored_when_the_ledger_is_lost(steps: Daemon) -> None:
    job = cut(steps, "typed")
    steps.ledger_lost()
    steps.released()
    steps.fake.advance(3.0)
    assert (job.state, dict(job.gpus)) == ("RUNNING", {("n3", "p100"): 2})


def test_a_release_that_slurmctld_has_lost_is_done_again(steps: Daemon) -> None:
    """The hold that it shows is hadard's, although hadard had seen the job without it."""
    steps.submit("alice", "any", True, "main", False, 0, RATES)
    steps.round()
    [job] = steps.fake.jobs
    steps.slurmctld_loses_releases()
    assert (job.state, job.hold) == ("PENDING", "user")
    steps.fake.advance(6.0)
    steps.round()
    steps.fake.advance(2.0)
    assert (job.state, job.num_gpus) == ("RUNNING", 2)


def test_a_job_with_a_bound_on_lost_work_is_stopped_only_late(steps: Daemon) -> None:
    """Twice its bound after its start it is requeued, without a signal."""
    steps.submit("alice", "any", True, "main", True, 0, RATES, loss_s=20.0)
    steps.round()
    steps.fake.advance(35.0)
    [job] = steps.fake.jobs
    steps.stop(0)
    assert (job.state, job.restarts) == ("RUNNING", 0)
    steps.fake.advance(10.0)
    steps.stop(0)
    assert (job.state, job.restarts, job.times_asked_to_save) == ("PENDING", 1, 0)
