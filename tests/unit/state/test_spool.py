"""The directories shared by jobs and hadard: their owner and permissions."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_slurm.state.spool import make_spool

ROOT = Path(__file__).parents[3]
OTHER_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def made(spool: Path) -> tuple[str, str, str]:
    """Make the directories of a spool; return the fault of each."""
    return make_spool(spool, spool / "reports", spool / "assignments")


def modes(spool: Path) -> list[int]:
    """Return the permissions of the spool and its directories."""
    places = (spool, spool / "reports", spool / "assignments")
    return [stat.S_IMODE(place.stat().st_mode) for place in places]


def test_all_are_made_with_their_permissions(tmp_path: Path) -> None:
    """Directories get their permissions whatever the umask, also on a second call."""
    before = os.umask(0o077)
    try:
        assert made(tmp_path / "a" / "spool") == ("", "", "")
    finally:
        os.umask(before)
    assert modes(tmp_path / "a" / "spool")[1:] == [0o1777, 0o711]
    assert made(tmp_path / "a" / "spool") == ("", "", "")


def test_where_slurm_hides_jobs_the_reports_cannot_be_listed(tmp_path: Path) -> None:
    """Nor where that was not so before; and the other way round."""
    for hides_jobs in (False, True, False):
        places = tmp_path, tmp_path / "reports", tmp_path / "assignments"
        assert make_spool(*places, hides_jobs=hides_jobs) == ("", "", "")
        assert modes(tmp_path)[1] == (0o1733 if hides_jobs else 0o1777)


@needs_root
def test_root_changes_no_directory_that_is_open_to_all(tmp_path: Path) -> None:
    """A spool writable by others, such as /tmp, is left as it is; the fault has a remedy."""
    tmp_path.chmod(0o1777)
    (told, _, _) = made(tmp_path)
    assert told == f"{tmp_path}: others may write to it: make it a directory of uid 0, mode 755"
    assert modes(tmp_path) == [0o1777, 0o1777, 0o711]


@needs_root
def test_hadards_account_closes_its_own(tmp_path: Path) -> None:
    """A spool that an earlier release left writable by all gets mode 755."""
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(0o1777)
    os.chown(spool, OTHER_UID, OTHER_UID)
    tmp_path.parent.chmod(0o755)
    tmp_path.chmod(0o755)
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from hadar_slurm.state.spool import make_spool\n"
        f"os.chdir({str(spool)!r}); os.setgroups([])\n"
        f"os.setgid({OTHER_UID}); os.setuid({OTHER_UID})\n"
        "print(make_spool(Path('.'), Path('reports'), Path('assignments')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("('', '', '')\n", "")
    assert modes(spool) == [0o755, 0o1777, 0o711]


@needs_root
@pytest.mark.parametrize(("name", "number"), [("reports", 1), ("assignments", 2)])
def test_a_directory_of_another_user_is_told_and_left(
    name: str, number: int, tmp_path: Path
) -> None:
    """The fault names the owner, and the directory is not changed."""
    (tmp_path / name).mkdir()
    os.chown(tmp_path / name, OTHER_UID, -1)
    before = (tmp_path / name).stat()
    told = made(tmp_path)[number]
    assert f"{tmp_path / name}: belongs to uid {OTHER_UID}, not to uid 0" in told
    assert (tmp_path / name).stat() == before
