"""The users of the test-bed: accounts of this machine, as which root submits jobs."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hadar_slurm
from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import HadarError, UsageError

# Accounts that exist on most systems and run no processes.
_NAMES = ("games", "news", "lp", "uucp", "list", "irc", "backup", "mail", "man")
NUM_USERS = 4
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")
_LEFT = re.compile(r"plain Slurm places this job: .*")
_LIMIT_S = 60.0
# The beginning of a program of root's that becomes another user; its arguments are the user id, the
# group id and the directory of this package. Only root may be able to read the interpreter's files,
# so it imports every module that hadar-sbatch needs before it changes its user.
BEFORE_CHANGE_OF_USER = """
import os, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import errno, fcntl, hashlib, json, random, select, signal, socket, stat, struct, subprocess, time
import difflib, encodings.idna
import importlib, pkgutil, hadar_slurm.cli.sbatch, hadar_slurm.submit
for each in pkgutil.iter_modules(hadar_slurm.submit.__path__):
    importlib.import_module(f"hadar_slurm.submit.{each.name}")
"""
# Submits each job of a list on standard input.
_SUBMIT_ALL = """
for words in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        sys.exit(hadar_slurm.cli.sbatch.main(words))
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


@dataclass(frozen=True)
class SiteUser:
    """One account, with its own directory."""

    name: str
    uid: int
    gid: int
    home: Path
    # A copy of this package that every user can read.
    package: Path = field(repr=False)

    def sbatch(self, words: Sequence[str], environment: Mapping[str, str]) -> JobId:
        """Submit a job by Slurm's own sbatch and return its id."""
        try:
            done = subprocess.run(
                ["sbatch", *words],
                cwd=self.home,
                env={**environment, "HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
                user=self.uid,
                group=self.gid,
                extra_groups=[],
            )
        except subprocess.TimeoutExpired:
            raise HadarError(f"sbatch gave no answer within {_LIMIT_S:g} s") from None
        return _ids(done, 1)[0]

    def hadar_sbatch(
        self, jobs: Sequence[Sequence[str]], environment: Mapping[str, str]
    ) -> tuple[list[JobId], list[str]]:
        """Submit jobs by hadar-sbatch, one after another.

        Returns their ids, and the reasons why hadar-sbatch has left jobs to plain Slurm.
        """
        own = [str(self.uid), str(self.gid), str(self.package)]
        try:
            done = subprocess.run(
                [sys.executable, "-c", BEFORE_CHANGE_OF_USER + _SUBMIT_ALL, *own],
                cwd=self.home,
                env={**environment, "HOME": str(self.home)},
                input=json.dumps([list(words) for words in jobs]),
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HadarError(f"hadar-sbatch gave no answer within {_LIMIT_S:g} s") from None
        return _ids(done, len(jobs)), _LEFT.findall(done.stderr)


def _ids(done: subprocess.CompletedProcess[str], count: int) -> list[JobId]:
    ids = [JobId(number) for number in _SUBMITTED.findall(done.stdout)]
    if done.returncode != 0 or len(ids) != count:
        raise HadarError(f"{len(ids)} of {count} jobs were submitted: {done.stderr.strip()}")
    return ids


def make_users(directory: Path) -> tuple[SiteUser, ...]:
    """Make `NUM_USERS` users' directories below `directory`, and a package for hadar-sbatch.

    Raises UsageError unless root calls it on a machine with enough accounts.
    """
    if os.geteuid() != 0:
        raise UsageError("only root can submit jobs of several users: run hadar site as root")
    accounts = list(_accounts())[:NUM_USERS]
    if len(accounts) < NUM_USERS:
        raise UsageError(f"needs {NUM_USERS} accounts out of {', '.join(_NAMES)} on this machine")
    package = directory / "package"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(hadar_slurm.__file__).parent, package / "hadar_slurm", ignore=ignored)
    users = []
    for account in accounts:
        home = directory / account.pw_name
        home.mkdir(mode=0o755)
        os.chown(home, account.pw_uid, account.pw_gid)
        users.append(
            SiteUser(
                account.pw_name, uid=account.pw_uid, gid=account.pw_gid, home=home, package=package
            )
        )
    subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
    return tuple(users)


def _accounts() -> Iterator[pwd.struct_passwd]:
    for name in _NAMES:
        try:
            yield pwd.getpwnam(name)
        except KeyError:
            continue
