"""Two ordinary users on a local cluster run by root: one submits jobs, the other attacks."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hadar_slurm
from hadar_slurm.lab.site.users import BEFORE_CHANGE_OF_USER

LIMIT_S = 60.0
# Accounts that exist on every Debian and run no processes.
NAMES = ("news", "games")

_BECOME = (
    BEFORE_CHANGE_OF_USER
    + """
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
sys.argv[1:] = sys.argv[4:]
"""
)
_SBATCH = "sys.exit(hadar_slurm.cli.sbatch.main(sys.argv[1:]))"


@dataclass(frozen=True)
class User:
    """One account, with its own directory and the environment of its commands."""

    name: str
    home: Path
    package: Path
    environment: dict[str, str] = field(repr=False)

    @property
    def uid(self) -> int:
        """Return the account's user id."""
        return pwd.getpwnam(self.name).pw_uid

    @property
    def gid(self) -> int:
        """Return the account's group id."""
        return pwd.getpwnam(self.name).pw_gid

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        return subprocess.run(
            argv,
            cwd=self.home,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
        )

    def hadar_sbatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run hadar-sbatch as this user."""
        return subprocess.run(
            self._python(_SBATCH, words),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def submit(self, *words: str) -> str:
        """Submit a job with hadar-sbatch and return its id."""
        done = self.hadar_sbatch(*words)
        match = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        assert match is not None, f"{done.stdout} {done.stderr}"
        return match[1]

    @contextmanager
    def running(self, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run Python code as this user until the end of the block; it prints a line when ready."""
        with subprocess.Popen(
            self._python(code, arguments),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), "it ended at once"
                yield process
            finally:
                process.kill()

    def script(self, name: str, text: str) -> str:
        """Write a batch script owned by this user and return its path."""
        path = self.home / name
        path.write_text(text)
        os.chown(path, self.uid, self.gid)
        return str(path)

    def _python(self, code: str, arguments: Sequence[str]) -> list[str]:
        who = [str(self.uid), str(self.gid), str(self.package)]
        return [sys.executable, "-c", _BECOME + code, *who, *arguments]


def make_users(directory: Path, environment: dict[str, str]) -> tuple[User, User]:
    """Create two users' directories below `directory`, readable by all, and return the users.

    `environment` selects the cluster. The users' commands run without its HADAR_SPOOL, so
    hadar-sbatch has to find the spool itself.
    """
    known = {key: value for key, value in environment.items() if key != "HADAR_SPOOL"}
    package = directory / "package"
    shutil.copytree(
        Path(hadar_slurm.__file__).parent,
        package / "hadar_slurm",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    users = []
    for name in NAMES:
        home = directory / name
        home.mkdir(mode=0o755)
        user = User(name, home, package, {**known, "HOME": str(home)})
        os.chown(home, user.uid, user.gid)
        users.append(user)
    subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
    return users[0], users[1]
