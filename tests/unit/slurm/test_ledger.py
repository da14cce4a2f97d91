"""hadard's changes of jobs are written to disk before they are made, or they are not made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.errors import LedgerError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.state.locks import LEDGER

ONE, TWO, TASK = JobId("1"), JobId("2"), JobId("3_4")
PINNED = Claim(
    state=State.PINNING,
    own=Request(num_nodes="1-4", per_job="gres/gpu:v100:2", nodes=(NodeName("n1"),)),
    named=("v100",),
    preferred=Loan("v100", "", ""),
    replaced=(NodeName("n2"),),
)
NOTHING = dict.fromkeys(Claim().loans)
HELD, HOLDING = Claim(state=State.HELD), Claim(state=State.HOLDING)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Return a ledger without a file."""
    return Ledger(tmp_path / FILE_NAME)


def test_the_next_daemon_reads_what_was_written(ledger: Ledger) -> None:
    """A restarted hadard reads all fields of all entries."""
    ledger.note({ONE: PINNED, TASK: Claim()})
    ledger.note({TWO: HOLDING})
    again = Ledger(ledger.path)
    assert again.was_read
    assert {job: again[job] for job in again} == {
        ONE: PINNED,
        TASK: Claim(),
        TWO: HOLDING,
    }


def test_whatever_numbers_a_claim_has_are_read_again(ledger: Ledger) -> None:
    """A claim that cannot be read would make the whole file worthless."""
    claim = Claim(state=State.STEERED, nice=Loan(-(1 << 33), 1 << 33, -5))
    ledger.note({JobId("7"): claim})
    assert Ledger(ledger.path)[JobId("7")] == claim


def test_who_has_no_entry_was_left_alone(ledger: Ledger) -> None:
    """An empty entry is distinguished from a missing one."""
    ledger.note({ONE: Claim()})
    assert ledger[TWO] == Claim()
    assert ONE in ledger
    assert TWO not in ledger


def test_what_is_gone_is_forgotten_on_disk_too(ledger: Ledger) -> None:
    """Entries of other jobs stay."""
    ledger.note({ONE: PINNED, TWO: HELD})
    ledger.forget_all_but({TWO, TASK})
    assert list(Ledger(ledger.path)) == [TWO]


def test_what_a_round_has_seen_is_written_at_its_end(ledger: Ledger) -> None:
    """A hadard that is killed after it would else take an owner's later hold for its own."""
    fake = FakeSlurm("v100:2")
    slurm = CommandLine(FakeRunner(slurm=fake))
    ledger.adopt()
    marked = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, is_held=True)
    job = fake.submit(Asked(per_job=parse_gpus("gpu:2")), comment=encode(marked))
    fake.hold(job, "user")
    ledger.see(slurm, slurm.queue().values())
    ledger.forget_all_but({JobId(job.key)})
    assert Ledger(ledger.path)[JobId(job.key)].state is State.HELD


def test_the_file_is_replaced_in_one_step_and_is_nobodys_to_write(ledger: Ledger) -> None:
    """No partly written file is visible, and no draft is left."""
    ledger.note({ONE: PINNED})
    before = ledger.path.stat().st_ino
    ledger.note({TWO: PINNED})
    assert ledger.path.stat().st_ino != before
    assert ledger.path.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in ledger.path.parent.iterdir()} == {FILE_NAME, LEDGER}


def test_no_other_user_can_keep_it_from_being_written(ledger: Ledger) -> None:
    """Other users cannot open the lock file, and a lock on the directory has no effect."""
    ledger.note({ONE: PINNED})
    assert (ledger.path.parent / LEDGER).stat().st_mode & 0o777 == 0o600
    with contextlib.closing(_Descriptor(ledger.path.parent)) as directory:
        fcntl.flock(directory.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ledger.note({TWO: PINNED})
    assert TWO in Ledger(ledger.path)


class _Descriptor:
    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.number)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_what_root_writes_belongs_to_hadards_account(ledger: Ledger) -> None:
    """After an operator's `hadar release` hadard can still read and write its ledger."""
    os.chown(ledger.path.parent, 65534, 65534)
    ledger.note({ONE: PINNED})
    owners = {path.stat().st_uid for path in ledger.path.parent.iterdir()}
    assert owners == {65534}


def test_a_fault_is_told_until_the_file_can_be_written(ledger: Ledger) -> None:
    """The fault names the file, and disappears with the first successful write."""
    ledger.path.mkdir()
    with pytest.raises(LedgerError):
        ledger.note({ONE: PINNED})
    ledger.retry()
    assert str(ledger.path) in ledger.fault
    ledger.path.rmdir()
    ledger.retry()
    assert ledger.fault == ""
    assert ledger.path.exists()


def test_nothing_is_written_where_nothing_changes(ledger: Ledger) -> None:
    """A round without changes causes no disk access."""
    ledger.note({ONE: PINNED})
    before = ledger.path.stat().st_mtime_ns, ledger.path.stat().st_ino
    ledger.note({ONE: PINNED})
    ledger.forget_all_but({ONE, TWO})
    assert (ledger.path.stat().st_mtime_ns, ledger.path.stat().st_ino) == before


def test_what_cannot_be_written_is_not_believed_either(ledger: Ledger) -> None:
    """The entries stay as they are on disk, the error names the file, and no draft is left."""
    ledger.path.mkdir()
    with pytest.raises(LedgerError, match=FILE_NAME):
        ledger.note({ONE: PINNED})
    assert ONE not in ledger
    with pytest.raises(LedgerError):
        ledger.note({TWO: HOLDING})
    assert {path.name for path in ledger.path.parent.iterdir()} == {FILE_NAME, LEDGER}


def test_a_missing_directory_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    """The directory may be removed while hadard runs."""
    with pytest.raises(LedgerError):
        Ledger(tmp_path / "gone" / FILE_NAME).note({ONE: PINNED})


def test_a_draft_that_is_a_link_is_not_followed(ledger: Ledger) -> None:
    """A user with write access to the directory cannot redirect the write to another file."""
    other = ledger.path.parent / "other"
    other.write_text("kept")
    ledger.path.with_name(f".{FILE_NAME}.{os.getpid()}").symlink_to(other)
    ledger.note({ONE: PINNED})
    assert other.read_text() == "kept"
    assert ONE in Ledger(ledger.path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"version": 2}',
        '{"version": 3, "jobs": {}}',
        '{"version": [], "jobs": {}}',
        '{"version": 2, "jobs": {"1": 7}}',
        '{"version": 2, "jobs": {"1": {"state": "asleep"}}}',
        '{"version": 2, "jobs": {"1": {"state": "held", "own": {"colour": "red"}}}}',
        '{"version": 1, "jobs": {"1": {"before": {"colour": "red"}}}}',
        '{"version": 2, "jobs": {"1": {"state": "steered", "excluded": "n["}}}',
        '{"version": 2, "jobs": {"1": {"state": "steered", "excluded": 7}}}',
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """The ledger is not whole then: a hold may be hadard's or a user's."""
    (tmp_path / FILE_NAME).write_text(text)
    ledger = Ledger(tmp_path / FILE_NAME)
    assert not ledger.was_read
    assert list(ledger) == []


def test_a_ledger_becomes_whole_by_what_is_found(ledger: Ledger) -> None:
    """What Slurm shows is written at once, even if empty, and merged with known entries."""
    ledger.note({ONE: PINNED})
    ledger.adopt()
    again = Ledger(ledger.path)
    assert again.was_read
    assert {job: again[job] for job in again} == {ONE: PINNED}


@pytest.mark.parametrize(
    ("submitted_s_ago", "state"),
    [
        (0.0, State.HELD),
        (50.0, State.HELD),
        # The clock of slurmctld is ahead.
        (-5.0, State.HELD),
        (70.0, State.UNMANAGED),
    ],
)
def test_a_job_that_hadar_sbatch_holds_after_it_has_submitted_it_is_hadards(
    tmp_path: Path, submitted_s_ago: float, state: State
) -> None:
    """hadard may read it in between. A hold of a job that has waited for long is its owner's."""
    fake = FakeSlurm("v100:2")
    slurm = CommandLine(FakeRunner(slurm=fake))
    ledger = Ledger(tmp_path / FILE_NAME, lambda: fake.now_s + submitted_s_ago)
    ledger.adopt()
    marked = Description(steps=100, gpus=2, throughputs={"v100": 1.0}, is_held=True)
    job = fake.submit(Asked(per_job=parse_gpus("gpu:2")), comment=encode(marked))
    ledger.see(slurm, slurm.queue().values())
    fake.hold(job, "user")
    ledger.see(slurm, slurm.queue().values())
    assert ledger[JobId(job.key)].state is state


def test_the_file_can_be_read_by_people(ledger: Ledger) -> None:
    """Jobs are listed by id, without fields that have their default."""
    ledger.note({ONE: HELD})
    assert json.loads(ledger.path.read_text()) == {"version": 2, "jobs": {"1": {"state": "held"}}}


@pytest.mark.parametrize("excluded", ['"n[1-2,10]"', '["n1", "n2", "n10"]'])
def test_excluded_nodes_are_a_host_list_or_names(tmp_path: Path, excluded: str) -> None:
    """Both read as the same claim, which is written with a host list."""
    jobs = f'{{"1": {{"state": "steered", "excluded": {excluded}}}}}'
    (tmp_path / FILE_NAME).write_text(f'{{"version": 2, "jobs": {jobs}}}')
    ledger = Ledger(tmp_path / FILE_NAME)
    assert set(ledger[JobId("1")].excluded.ours) == {"n1", "n2", "n10"}
    ledger.note({JobId("2"): Claim(state=State.HELD)})
    written = json.loads((tmp_path / FILE_NAME).read_text())["jobs"]["1"]
    assert written["excluded"] == "n[1-2,10]"


def test_a_number_of_nodes_is_lent_as_in_the_ledgers_of_0_2(tmp_path: Path) -> None:
    """They have hadard's only, while it is lent; the owner's is in the request."""
    own = Request(num_nodes="1-4", per_job="gres/gpu:2")
    tree = {"state": "steered", "own": {"num_nodes": "1-4"}, "sized": "2-2"}
    (tmp_path / FILE_NAME).write_text(json.dumps({"version": 2, "jobs": {"1": tree}}))
    ledger = Ledger(tmp_path / FILE_NAME)
    assert (ledger[ONE].sized, ledger[ONE].lent) == (Loan("2-2", "1-4", "1-4"), {"sized": "1-4"})
    kept = Claim(state=State.STEERED, own=own, sized=Loan("2-2", "1-4", "1-4"))
    ledger.note({ONE: kept, TWO: kept.seen({**NOTHING, "sized": "3-3"})})
    jobs = json.loads((tmp_path / FILE_NAME).read_text())["jobs"]
    assert (jobs["1"]["sized"], jobs["1"]["own"]["num_nodes"]) == ("2-2", "1-4")
    assert ("sized" in jobs["2"], jobs["2"]["own"]["num_nodes"]) == (False, "3-3")
    assert Ledger(tmp_path / FILE_NAME)[TWO].sized.is_kept


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        ({"is_held": True}, State.HELD),
        ({"is_held": True, "asked_when_held": []}, State.HOLDING),
        ({"is_held": True, "asked_when_held": ["n2"], "before": {"nodes": []}}, State.PINNING),
        ({"is_held": True, "requeued": 2}, State.REQUEUING),
        ({"released_s": 5.0, "booted_s": 4.0, "pinned": ["n1"]}, State.RELEASED),
        ({"before": {"per_job": "gres:gpu:2"}, "pinned": ["n1"]}, State.RELEASED),
        ({"preferred": "v100"}, State.STEERED),
        ({"signalled_run": 1, "signalled_until_s": 9.0, "ended_run": 1}, State.UNMANAGED),
    ],
    ids=str,
)
def test_a_ledger_of_version_1_is_read(
    tmp_path: Path, flags: dict[str, object], state: State
) -> None:
    """After an upgrade hadard still knows its holds, and every value."""
    (tmp_path / FILE_NAME).write_text(json.dumps({"version": 1, "jobs": {"1": flags}}))
    claim = Ledger(tmp_path / FILE_NAME)[ONE]
    assert claim.state is state
    assert claim.replaced == tuple(flags.get("asked_when_held") or ())  # type: ignore[call-overload]
    assert claim.pinned == tuple(flags.get("pinned") or ())  # type: ignore[call-overload]
    assert (claim.own is None) == ("before" not in flags)
    for name, value in flags.items():
        if name in ("booted_s", "requeued", "signalled_until_s", "ended_run"):
            assert getattr(claim, name) == value
    assert claim.preferred == Loan(flags.get("preferred", ""), "", "")
    assert claim.since_s == flags.get("released_s", 0.0)


_numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**400, -1, float("inf"), float("nan")])
)
_trees = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                "jobs version is_held released_s requeued before pinned per_node nodes "
                "state own replaced since_s".split()
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(
    content=st.one_of(
        st.binary(max_size=300),
        _trees.map(lambda tree: json.dumps({"version": 1, "jobs": {"1": tree}}).encode()),
        _trees.map(lambda tree: json.dumps({"version": 2, "jobs": {"1": tree}}).encode()),
        _trees.map(lambda tree: json.dumps(tree).encode()),
        st.sampled_from(
            [
                b'{"version":1,"jobs":{"1":{"released_s":1e999}}}',
                b'{"version":1,"jobs":{"1":{"requeued":1e999}}}',
                b"[" * 200_000,
                b'{"version":2,"jobs":{"1":{"state":"held","since_s":1e999}}}',
                b'{"version":2,"jobs":{"1":{"state":["held"]}}}',
                b'{"version":2,"jobs":{"1":{"state":"held","own":5}}}',
                b'{"version":1,"jobs":{"1":{"before":' + b'{"nodes":' * 50_000 + b"}}}",
                b'{"version":1,"jobs":{"1":{"before":{"per_node":5}}}}',
                b'{"version":1,"jobs":{"1":{"before":{"colour":"red"}}}}',
            ]
        ),
    )
)
def test_any_bytes_are_a_ledger_or_none(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file with foreign content stops neither hadard nor `hadar release`."""
    path = tmp_path_factory.mktemp("state") / FILE_NAME
    path.write_bytes(content)
    ledger = Ledger(path)
    if not ledger.was_read:
        assert list(ledger) == []
    ledger.note({ONE: PINNED})
    assert Ledger(path)[ONE].pinned == PINNED.pinned
