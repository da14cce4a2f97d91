"""A local cluster as a shared site has it: accounting, priorities, QOS, several users."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import daemon_variables, wait_until
from hadar_slurm.errors import HadarError, SlurmError
from hadar_slurm.lab.demo.runs import Daemon
from hadar_slurm.lab.site.jobs import NODES, write_script
from hadar_slurm.lab.site.users import SiteUser, make_users
from hadar_slurm.slurm.client.runner import Runner

ACCOUNTS = ("physics", "biology")
# May start before others, not in their place.
HIGH_QOS = "high"
# May requeue jobs of the QOS `normal`.
PREEMPTING_QOS = "urgent"
# Two GPUs a user.
LIMITED_QOS = "limited"
_QOS = {
    HIGH_QOS: "Priority=100",
    PREEMPTING_QOS: "Priority=1000 Preempt=normal",
    LIMITED_QOS: "MaxTRESPerUser=gres/gpu=2",
}
# Waiting time counts most, after the QOS: as on many sites, only faster. Usage counts a little.
_SETTINGS = """\
PriorityType=priority/multifactor
PriorityWeightAge=10000
PriorityMaxAge=00:10:00
PriorityWeightFairshare=500
PriorityWeightQOS=100000
PriorityCalcPeriod=1
PreemptType=preempt/qos
PreemptMode=REQUEUE
SuspendProgram={suspend}
ResumeProgram={resume}
SuspendTime=86400
SuspendTimeout=3
ResumeTimeout=60
"""
# The default of Slurm, in seconds.
_SCHED_INTERVAL_S = 60.0
_CLEAR_LIMIT_S, _CLEAR_TRIES = 60.0, 4
_POWER_DOWN_LIMIT_S = 120.0


@dataclass
class SharedSite:
    """A cluster with users; plays run on it one after another."""

    cluster: LocalCluster
    users: tuple[SiteUser, ...]
    script: Path
    scratch: Path
    num_plays: int = 0

    @cached_property
    def runner(self) -> Runner:
        """Return the operator's runner of commands."""
        return self.cluster.runner()

    @cached_property
    def interval_s(self) -> float:
        """Return the time between two looks of Slurm's main scheduler at the whole queue."""
        found = re.search(
            r"\bsched_interval=(\d+)", self.runner.run(["scontrol", "show", "config"])
        )
        return float(found[1]) if found else _SCHED_INTERVAL_S

    def play_directory(self) -> Path:
        """Return a new directory for hadard's files in one play."""
        self.num_plays += 1
        path = self.scratch / f"play-{self.num_plays}"
        (path / "run").mkdir(parents=True)
        return path

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the variables of a user's commands, beside HOME."""
        return {
            "PATH": f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.cluster.slurm_conf),
            "HADAR_RUN_DIR": str(directory / "run"),
        }

    def daemon(self, directory: Path, config: dict[str, object]) -> Daemon:
        """Return a hadard with its files in `directory`, not yet started."""
        places = {
            "slurm_conf": self.cluster.slurm_conf,
            "run_dir": directory / "run",
            "spool_dir": directory / "spool",
            "state_dir": directory / "state",
            "disable_file": directory / "disabled",
        }
        environment = {**os.environ, **self.environment(directory)}
        return Daemon(directory, environment, {**config, **places})

    def clear(self) -> None:
        """Cancel all jobs, forget what accounts have used, and wait for idle nodes.

        A node that did not power up in time is down until it is resumed and powered up again.
        """
        self.cluster.cancel_jobs()
        self._sacctmgr("modify", "account", ",".join(ACCOUNTS), "set", "RawUsage=0")

        def is_idle() -> bool:
            if self.runner.run(["squeue", "-h"]).strip():
                return False
            return all(node.state == "idle" for node in self.cluster.status().nodes)

        for _ in range(_CLEAR_TRIES):
            if wait_until(is_idle, _CLEAR_LIMIT_S, every_s=0.25):
                break
            for node in self.cluster.status().nodes:
                if node.state.startswith("down") or node.state.endswith("~"):
                    with suppress(SlurmError):
                        self.runner.run(
                            ["scontrol", "update", f"NodeName={node.name}", "State=RESUME"]
                        )
                    self.power_up(node.name)
        else:
            states = {node.name: node.state for node in self.cluster.status().nodes}
            raise HadarError(f"nodes do not become idle between two plays: {states}")

    def power_down(self, nodes: str) -> None:
        """Power nodes down as a site's power saving does, and wait until they are off."""
        self.runner.run(["scontrol", "update", f"NodeName={nodes}", "State=POWER_DOWN_FORCE"])
        words = ["sinfo", "-h", "-N", "-n", nodes, "-o", "%t"]

        def are_off() -> bool:
            return all(state.endswith("~") for state in self.runner.run(words).split())

        if not wait_until(are_off, _POWER_DOWN_LIMIT_S, every_s=0.25):
            raise HadarError(f"{nodes} do not power down: {self.runner.run(words).split()}")

    def power_up(self, nodes: str) -> None:
        """Power nodes up, unless they are already."""
        with suppress(SlurmError):
            self.runner.run(["scontrol", "update", f"NodeName={nodes}", "State=POWER_UP"])

    def _register(self) -> None:
        """Make the QOS, and an account for every second user."""
        for name, limits in _QOS.items():
            self._sacctmgr("add", "qos", name, *limits.split())
        for account in ACCOUNTS:
            self._sacctmgr("add", "account", account)
        qos = ",".join(["normal", *_QOS])
        for place, user in enumerate(self.users):
            account = ACCOUNTS[place % len(ACCOUNTS)]
            self._sacctmgr("add", "user", user.name, f"account={account}", f"qos={qos}",
                           "defaultqos=normal")  # fmt: skip

    def _sacctmgr(self, *words: str) -> None:
        self.runner.run(["sacctmgr", "--immediate", "--quiet", *words])


@contextmanager
def shared_site(scratch: Path) -> Iterator[SharedSite]:
    """Run a site's cluster and users in `scratch` during a block; nothing is left behind."""
    scratch.mkdir(mode=0o755)
    users = make_users(scratch)
    directory = scratch / "c"
    settings = _SETTINGS.format(**_power_programs(scratch, directory))
    with LocalCluster.up(directory, NODES, accounting=True, settings=settings) as cluster:
        site = SharedSite(cluster, users, write_script(scratch), scratch)
        site._register()
        yield site


def _power_programs(scratch: Path, directory: Path) -> dict[str, Path]:
    """Write the programs that stop and start the slurmd of nodes, as power saving calls them."""
    slurmd = shutil.which("slurmd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    nodes = 'for node in $(scontrol show hostnames "$1"); do'
    own = daemon_variables(directory, "")
    variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in own.items() if value)
    [mark] = [key for key, value in own.items() if not value]
    texts = {
        "suspend": f"{nodes} kill $(cat {directory}/pid/$node.pid); done",
        # The former slurmd may still be ending, with its port. -b reports a boot, for which
        # slurmctld waits.
        "resume": f"{nodes} former=$(cat {directory}/pid/$node.pid 2>/dev/null); tries=100; "
        'while [ "$former" ] && kill -0 $former 2>/dev/null && [ $tries -gt 0 ]; do '
        "sleep 0.1; tries=$((tries - 1)); done; "
        f"env {variables} {mark}=$node {slurmd} -b -N $node "
        f"-f {directory}/slurm.conf </dev/null >/dev/null 2>&1; done",
    }
    programs = {}
    for name, text in texts.items():
        programs[name] = scratch / name
        head = f"#!/bin/sh\nexport SLURM_CONF={directory}/slurm.conf PATH=/usr/bin:/bin:$PATH"
        programs[name].write_text(f"{head}\n{text}\n", encoding="utf-8")
        programs[name].chmod(0o755)
    return programs
