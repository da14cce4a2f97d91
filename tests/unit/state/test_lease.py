"""Only one hadard enforces on a cluster, even if two controllers each run one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hadar_slurm.errors import DaemonError
from hadar_slurm.state import lease as module
from hadar_slurm.state.lease import Holder, Lease

NOW_S = 1000.0
CLUSTER = "c/1"


def a_lease(spool: Path, *, good_for_s: float = 0.0, act: Callable[[], object] = list) -> Lease:
    """Return a lease; `act` is called whenever it waits."""
    return Lease(spool, CLUSTER, good_for_s, now_s=lambda: NOW_S, sleep=lambda s: act() and None)


def put(lease: Lease, **changes: object) -> Holder:
    """Write a lease that a hadard on another machine holds."""
    holder = Holder("theirs", "elsewhere", "boot", 1, "1", 0.0, NOW_S)
    holder = replace(holder, **changes)  # type: ignore[arg-type]
    lease.path.write_text(json.dumps(asdict(holder)))
    return holder


def test_it_is_taken_renewed_and_given_up(tmp_path: Path) -> None:
    """The file names the holder, and is removed afterwards."""
    lease = a_lease(tmp_path)
    assert lease.holder() is None
    lease.take()
    holder = lease.holder()
    assert holder is not None
    assert (holder.token, holder.host, holder.pid) == (
        lease.token,
        socket.gethostname(),
        os.getpid(),
    )
    assert lease.path.parent == tmp_path
    lease._written_s -= module.EVERY_S
    lease.renew()
    lease.give_up()
    assert list(tmp_path.iterdir()) == []


def test_another_process_of_this_machine_that_lives_keeps_it(tmp_path: Path) -> None:
    """A running process keeps its lease; one that ended or ran before a reboot does not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = {
            "host": socket.gethostname(),
            "boot": module._boot(),
            "pid": other.pid,
            "process": module._process(other.pid),
        }
        lease = a_lease(tmp_path)
        put(lease, **theirs, good_for_s=600.0)
        with pytest.raises(DaemonError, match=f"process {other.pid} on "):
            lease.take()
        put(lease, **{**theirs, "boot": "an earlier one"}, good_for_s=600.0)
        lease.take()
        put(lease, **theirs, good_for_s=600.0)
        other.communicate(b"\n")
    lease.take()
    assert lease.holder() is not None


def test_one_of_another_machine_is_outwaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of another machine that is not renewed in time is taken over."""
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    lease = a_lease(tmp_path)
    put(lease)
    lease.take()
    holder = lease.holder()
    assert holder is not None
    assert holder.token == lease.token


def test_one_of_another_machine_that_is_renewed_is_left(tmp_path: Path) -> None:
    """A renewal counts whatever the clock of the other machine shows."""
    times = iter(range(100))
    lease = a_lease(tmp_path, act=lambda: put(lease, renewed_s=next(times), good_for_s=60.0))
    put(lease, good_for_s=60.0)
    with pytest.raises(DaemonError, match="process 1 on elsewhere"):
        lease.take()


def test_of_two_that_take_over_one_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two hadards that take over, the last writer has the lease."""
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    lease = a_lease(tmp_path, act=lambda: put(lease, token="quicker"))
    put(lease)
    with pytest.raises(DaemonError, match="another hadard is at work"):
        lease.take()


def test_who_hung_for_too_long_finds_it_taken_over(tmp_path: Path) -> None:
    """After its lease was taken over, a hadard stops, and does not remove the new lease."""
    lease = a_lease(tmp_path)
    lease.take()
    put(lease)
    lease.renew()  # not due yet
    lease._written_s -= module.EVERY_S
    for _ in range(2):
        with pytest.raises(DaemonError, match="elsewhere"):
            lease.renew()
    lease.give_up()
    assert lease.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_lease_of_another_user_is_no_lease(tmp_path: Path) -> None:
    """A lease written by another user is ignored."""
    lease = a_lease(tmp_path)
    put(lease, good_for_s=3600.0)
    os.chown(lease.path, 65534, -1)
    lease.take()
    assert lease.path.stat().st_uid == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"pid": 1e999}', b"\xff"])
def test_what_is_no_lease_is_none(content: bytes, tmp_path: Path) -> None:
    """An invalid file does not prevent hadard from starting."""
    lease = a_lease(tmp_path)
    lease.path.write_bytes(content)
    assert lease.holder() is None
    lease.take()
