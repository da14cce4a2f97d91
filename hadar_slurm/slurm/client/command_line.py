"""The adapter for Slurm's own command-line tools, 22.05 on, which works everywhere.

One `squeue` and two `scontrol` read a whole cluster. The changes of a batch go through the standard
input of one `scontrol`, about twice as fast as one process for each.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.modes import Partitions
from hadar_slurm.engine.rate_limit import in_command, in_parts, most_alone, rpcs_per_s
from hadar_slurm.errors import SlurmError, SlurmRefused, SlurmUnavailable
from hadar_slurm.slurm.client import scontrol
from hadar_slurm.slurm.client.fairshare import parse_fair_shares
from hadar_slurm.slurm.client.parse import NodeRow, QueueRow, RowsByTexts, parse_reservations
from hadar_slurm.slurm.client.protocol import Abilities, Preemptible, Shares, Site
from hadar_slurm.slurm.client.runner import Runner, fault_of, is_unreachable
from hadar_slurm.slurm.client.state import (
    SHOW_RESERVATIONS,
    SlurmState,
    read_all,
    read_jobs,
    read_nodes,
    read_queue,
)
from hadar_slurm.slurm.client.updates import Update

if TYPE_CHECKING:
    from hadar_slurm.slurm.client.submission import Submission

# Words that scontrol does not split when it reads them from its standard input.
# Bytes above 127 may be commands to its line editor.
_PLAIN = re.compile(r"[\w.,:/=+\-\[\]|&*()@!]+|Comment=[\w.,:;/=+\-\[\]|&*()@!{}\"\\]*", re.ASCII)
# How scontrol refuses a command without naming the job; all else may be a site's warnings.
_REFUSES = (
    r"slurm_\w+ error:|job notify failure: |scontrol: error: Invalid |Request aborted"
    "|Update of this parameter is not supported: |invalid |too (few|many) arguments "
)
# The time limit of scancel, which sends signals at once.
_SIGNAL_S = 3.0
_NOT_SIGNALLED = re.compile(r"job id (\S+?):? (.*)")
Send = Callable[[Sequence[Update]], list[SlurmError | None]]


@dataclass(frozen=True)
class CommandLine:
    """The adapter for the cluster of `runner`."""

    runner: Runner
    name = "command line"
    # The site, once it was read.
    _known: dict[str, Site] = field(default_factory=dict, init=False, compare=False, repr=False)
    # Those of the last reading of the queue.
    _rows: RowsByTexts = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def version(self) -> tuple[int, int]:
        """Return the version of Slurm's commands; slurmctld may be newer."""
        return scontrol.parse_version(self.runner.run(["scontrol", "--version"]))

    @cached_property
    def abilities(self) -> Abilities:
        """Return what the adapter can express."""
        return Abilities(keeps_types=scontrol.keeps_types(self.version))

    def site(self) -> Site:
        """Return the Slurm that the commands reach."""
        lines = self.runner.run(["scontrol", "show", "config"]).splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (s.partition("=") for s in lines)}
        host, port = facts.get("SlurmctldHost[0]", ""), facts.get("SlurmctldPort", "")
        booted_s = float(text) if (text := facts.get("BOOT_TIME", "")).isdecimal() else 0.0
        hides_jobs = "jobs" in facts.get("PrivateData", "").lower().split(",")
        name, address = facts.get("ClusterName", ""), f"{host}:{port}"
        rpcs = rpcs_per_s(facts, self.runner.uid)
        self._known["site"] = found = Site(name, address, booted_s, hides_jobs, rpcs)
        return found

    @property
    def rpcs_per_s(self) -> float:
        """Return how many RPCs slurmctld answers to this account, as `site` has read it last."""
        return self._known["site"].rpcs_per_s if self._known else math.inf

    def queue(self) -> dict[JobId, QueueRow]:
        """Return every job and array task."""
        return read_queue(self.runner, known=self._rows)

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return every node."""
        return read_nodes(self.runner)

    def read(self) -> SlurmState:
        """Return the queue, the nodes and the GPUs that jobs hold."""
        return self._of_version(read_all(self.runner, most_alone(self.rpcs_per_s), self._rows))

    def read_jobs(self, jobs: Collection[JobId]) -> SlurmState:
        """Return the queue, the GPUs and the details of these jobs."""
        return self._of_version(read_jobs(self.runner, jobs, most_alone(self.rpcs_per_s)))

    def _of_version(self, state: SlurmState) -> SlurmState:
        invents = scontrol.shows_invented_max_nodes(self.version)
        return replace(state, shows_invented_max_nodes=invents)

    def submissions(self) -> dict[JobId, Submission]:
        """Return what each job and array task asked for beside GPUs and nodes."""
        from hadar_slurm.slurm.client.submission import read_submissions

        return read_submissions(self.runner, self.version)

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Attempt every change in order; none after slurmctld has not answered: each would wait."""
        faults: list[SlurmError | None] = []
        for send, batch in self._batches(changes):
            if any(isinstance(fault, SlurmUnavailable) for fault in faults):
                text = "not tried: slurmctld did not answer to the change before"
                faults += [SlurmUnavailable(text)] * len(batch)
            else:
                faults += send(batch)
        return faults

    def _batches(self, changes: Sequence[Update]) -> Iterator[tuple[Send, Sequence[Update]]]:
        """Yield successive changes that one command makes, and how it is sent."""
        for own, group in groupby(changes, lambda change: getattr(change, "signal", None)):
            some, most = list(group), in_command(self.rpcs_per_s)
            for batch in [some] if own else in_parts(some, most):
                yield (self._signal if own else self._control), batch

    def fair_shares(self) -> Shares:
        """Return the fair-share factors; empty without slurmdbd."""
        try:
            argv = ["sshare", "-a", "-P", "-n", "-o", "Account,User,FairShare"]
            return parse_fair_shares(self.runner.run(argv))
        except SlurmError:
            return {}

    def reserved_nodes(self) -> frozenset[NodeName]:
        """Return the nodes of all reservations, also of those that have not begun."""
        found = parse_reservations(self.runner.run(SHOW_RESERVATIONS))
        return frozenset[NodeName]().union(*(one.nodes for one in found))

    def partitions(self) -> Partitions:
        """Return the partitions that sinfo lists, hidden ones included."""
        listed = re.findall(r"^(\S+)\|$", self.runner.run(["sinfo", "-a", "-h", "-o", "%P|"]), re.M)
        default = next((name[:-1] for name in listed if name.endswith("*")), "")
        return Partitions(tuple(sorted({name.rstrip("*") for name in listed})), default)

    def preemptible(self) -> Preemptible:
        """Return what Slurm preempts by requeue."""
        from hadar_slurm.slurm.client.preemption import read_preemptible

        return read_preemptible(self.runner)

    def _signal(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Signal all of the jobs at once; scancel names those that it could not signal."""
        *argv, _ = scontrol.command(changes[0])
        jobs = [str(change.job) for change in changes]
        # scancel retries for a minute where a job has left its nodes meanwhile.
        limit_s = min(_SIGNAL_S, self.runner.timeout_s)
        try:
            replace(self.runner, timeout_s=limit_s).run([*argv, *jobs])
        except SlurmUnavailable as error:
            # The jobs' reports show which of them the signal has reached.
            return [error if is_unreachable(str(error)) else None] * len(jobs)
        except SlurmRefused as error:
            said = dict(_NOT_SIGNALLED.findall(str(error).replace("; ", "\n")))
            # An error without a job id may concern any of the jobs.
            if not said:
                return [error] * len(jobs)
            refused = {job: SlurmRefused(f"scancel {job}: {why}") for job, why in said.items()}
            return [refused.get(job) for job in jobs]
        return [None] * len(jobs)

    def _control(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Make the changes with one scontrol, and assign its errors to them.
        Before and after each command comes a word that scontrol does not know: what it says between
        two of these errors belongs to the command, unless it says that without a command too.
        """
        lines = [scontrol.command(change)[1:] for change in changes]
        strange = next((word for line in lines for word in line if not _PLAIN.fullmatch(word)), "")
        if strange:
            fault = SlurmRefused(f"scontrol: {strange!r} is nothing to put on its standard input")
            return [fault] * len(changes)
        mark = f"mark{secrets.token_hex(8)}"
        script = f"{mark}\n" + "".join(f"{' '.join(line)}\n{mark}\n" for line in lines) + "quit\n"
        try:
            said = self.runner.complaints(["scontrol"], stdin=script)
        except SlurmUnavailable as error:
            return [error] * len(changes)
        before, *parts = re.split(rf"[^\n]*{mark}[^\n]*\n?", said)
        answers = zip(changes, lines, parts[:-1], strict=False)
        faults = [_fault(change, line, part, before) for change, line, part in answers]
        unanswered = SlurmUnavailable("scontrol ended before it came to this change")
        return faults + [unanswered] * (len(changes) - len(faults))


def _fault(change: Update, line: Sequence[str], said: str, before: str) -> SlurmError | None:
    """Return the fault of one change by what scontrol said with it and not `before`, or None."""
    words = [text for text in said.splitlines() if text and text not in before.splitlines()]
    array, _, task = map(re.escape, change.job.partition("_"))
    # Slurm 26.05 writes 7_[3] of task 7_3, and names tasks of which it refuses what 7 was to get.
    job = rf"{array}_\[?{task}\]?" if task else rf"{array}(_\S+)?"
    names = rf"{_REFUSES}|.*\b(for job|job ID) {job}\b|{job}: "
    text = "; ".join(words)
    is_fault = any(re.match(names, each) for each in words) or is_unreachable(text)
    return fault_of(f"scontrol {' '.join(line)}: {text}", text) if is_fault else None
