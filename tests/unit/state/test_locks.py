"""Locks exclude a second hadard, and no other user can take or block one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from hadar_slurm.errors import DaemonError
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.state.locks import DAEMON, RELEASE, lock, only_daemon, started_s

OTHER_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture
def site() -> Site:
    """Return a cluster that no other test has the lock of."""
    return Site(f"locks-{uuid4()}", "localhost")


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """Yield a directory that other users may enter and list, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def another_user(code: str, *arguments: str) -> Iterator[None]:
    """Run Python code as another user until the end of the block."""
    become = f"import os, socket, fcntl, sys, time\nos.setgroups([])\nos.setgid({OTHER_UID})\n"
    program = f"{become}os.setuid({OTHER_UID})\n{code}\nprint(flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield
        finally:
            process.kill()


def test_one_daemon_a_cluster(site: Site, tmp_path: Path) -> None:
    """A second hadard is refused by state directory and by machine."""
    other = tmp_path / "other"
    other.mkdir()
    with only_daemon(site.name, site.address, tmp_path):
        for place in (tmp_path, other):
            with (
                pytest.raises(DaemonError, match="another hadard is at work"),
                only_daemon(site.name, site.address, place),
            ):
                pass
        elsewhere = Site(f"{site.name}-2", "localhost")
        with only_daemon(elsewhere.name, elsewhere.address, other):
            pass
    with only_daemon(site.name, site.address, tmp_path):
        pass


@needs_root
def test_a_name_that_another_user_has_taken_keeps_no_hadard_from_starting(
    site: Site, tmp_path: Path
) -> None:
    """An abstract socket counts as a lock only if root or hadard's account listens on it."""
    with only_daemon(site.name, site.address, tmp_path):
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    [name] = {name for name in names if name.startswith("@hadard-")} - _names()
    take = (
        "held = socket.socket(socket.AF_UNIX)\nheld.bind('\\0' + sys.argv[1][1:])\nheld.listen(1)"
    )
    with another_user(take, name), only_daemon(site.name, site.address, tmp_path):
        pass


def _names() -> set[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.split()[-1] for line in lines if "@hadard-" in line}


@needs_root
@pytest.mark.parametrize("name", [DAEMON, RELEASE])
def test_another_user_cannot_hold_a_lock(site: Site, name: str, seen_by_all: Path) -> None:
    """Another user cannot lock any file of a readable state directory."""
    with lock(seen_by_all, name) as is_ours:
        assert is_ours
    take = (
        "for name in ('.', *os.listdir(sys.argv[1])):\n"
        "    try:\n"
        "        held = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)\n"
        "        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError:\n"
        "        pass"
    )
    with another_user(take, str(seen_by_all)):
        with lock(seen_by_all, name) as is_ours:
            assert is_ours
        with only_daemon(site.name, site.address, seen_by_all):
            pass


def test_a_lock_that_is_held_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    """Waiting for a lock ends after `wait_s`."""
    with lock(tmp_path, RELEASE) as first, lock(tmp_path, RELEASE, wait_s=0.1) as second:
        assert (first, second) == (True, False)
    with lock(tmp_path, RELEASE) as again:
        assert again


def test_it_is_known_since_when_a_hadard_is_at_work(site: Site, tmp_path: Path) -> None:
    """The start time of a running hadard is known; None if none runs."""
    assert started_s(tmp_path) is None
    with only_daemon(site.name, site.address, tmp_path):
        os.utime(tmp_path / DAEMON, (1000, 1000))
        assert started_s(tmp_path) == 1000
    assert started_s(tmp_path) is None


def test_a_hadard_that_only_observes_needs_no_state(site: Site, tmp_path: Path) -> None:
    """A hadard that observes needs no state directory; one that enforces does."""
    with only_daemon(site.name, site.address, tmp_path / "none", is_required=False):
        pass
    with (
        pytest.raises(DaemonError, match="No such file"),
        only_daemon(site.name, site.address, tmp_path / "none"),
    ):
        pass


@needs_root
def test_a_lock_that_root_made_is_hadards_to_take(tmp_path: Path) -> None:
    """A lock file created by root belongs to the owner of the directory."""
    os.chown(tmp_path, OTHER_UID, OTHER_UID)
    with lock(tmp_path, RELEASE):
        pass
    facts = (tmp_path / RELEASE).stat()
    assert (facts.st_uid, facts.st_mode & 0o777) == (OTHER_UID, 0o600)
