"""The dockerized cluster as tests use it: commands run as its users, and waiting."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

USERS = ("alice", "bob", "carol", "dave")
# A busy machine may take this long for what takes a second on an idle one.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class DockerCluster:
    """A running cluster of docker/compose.yaml; `project` is its COMPOSE_PROJECT_NAME."""

    repository: Path
    project: str

    @cached_property
    def containers(self) -> dict[str, str]:
        """Return the containers' names by service."""
        rows = _output(
            "docker", "ps", "--filter", f"label=com.docker.compose.project={self.project}",
            "--format", '{{.Label "com.docker.compose.service"}} {{.Names}}',
        )  # fmt: skip
        return dict(row.split(" ", 1) for row in rows.splitlines())

    def attempt(
        self,
        *argv: str,
        user: str = "root",
        service: str = "ctl",
        stdin: str = "",
        limit_s: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container and return its exit status and output."""
        home = {"root": "/root", "hadar": "/var/lib/hadar"}.get(user, f"/home/{user}")
        return subprocess.run(
            ["docker", "exec", "-i", "--user", user, "--workdir", home,
             self.containers[service], *argv],
            input=stdin, capture_output=True, encoding="utf-8", timeout=limit_s, check=False,
        )  # fmt: skip

    def run(self, *argv: str, user: str = "root", service: str = "ctl", stdin: str = "") -> str:
        """Run a command that must succeed, and return its output."""
        done = self.attempt(*argv, user=user, service=service, stdin=stdin)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def submit(self, *options: str, user: str, script: str, command: str = "sbatch") -> str:
        """Submit a batch script as `user` and return the job's id."""
        said = self.run(command, *options, user=user, stdin=f"#!/bin/sh\n{script}\n")
        match = re.search(r"Submitted batch job (\d+)", said)
        assert match is not None, said
        return match[1]

    def job(self, number: str) -> dict[str, str]:
        """Return scontrol's fields of a job whose texts contain no blanks."""
        line = self.run("scontrol", "show", "job", "-d", "-o", number)
        return dict(re.findall(r"(\S+?)=(\S*)", line))

    def wait_for_state(self, number: str, state: str) -> dict[str, str]:
        """Wait until a job is in `state`, and return scontrol's fields of it."""
        job = self.job(number)

        def is_so() -> bool:
            job.update(self.job(number))
            return job["JobState"] == state

        try:
            wait_until(is_so, f"job {number} is {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}, and not {job}") from error
        return job


def wait_until(is_so: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; after `limit_s` seconds, fail with the text `what`."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {limit_s:g} s: {what}"
        time.sleep(0.2)


def _output(*argv: str) -> str:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
