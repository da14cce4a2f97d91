"""Slurm's command-line tools on the model of slurmctld, with the same arguments and output.

The output has the form of 22.05.8, 24.11.5 and 26.05.5 as captured under tests/data/slurm.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.fake_slurm import (
    Asked,
    FakeJob,
    FakeNode,
    FakeSlurm,
    Gpus,
    Rejected,
    fold_out,
    parse_gpus,
)

from hadar_slurm.slurm.client.runner import Runner, is_unreachable

UNREACHABLE = "Unable to contact slurm controller (connect failure)"
_AWAY = {
    "squeue": f"slurm_load_jobs error: {UNREACHABLE}",
    "scancel": f"scancel: error: slurm_kill_job2() failed {UNREACHABLE}",
    "sinfo": f"slurm_load_partitions: {UNREACHABLE}",
}


class Killed(BaseException):
    """Stands for the kill of hadard during its work: no code of hadard may catch this."""


@dataclass(frozen=True, slots=True)
class FakeRunner(Runner):
    """Runs the tools on a fake; `user` is the caller, None for hadard's own account.

    The functions in `before` are called before every command, including those on scontrol's
    standard input. Each may change the cluster, raise Killed, or return an error, which is printed
    instead of running the command.
    """

    slurm: FakeSlurm = field(default_factory=lambda: FakeSlurm("v100:4"))
    user: str | None = None
    before: list[Callable[[Sequence[str]], str | None]] = field(default_factory=list)

    def _done(self, argv: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
        if argv[0] == "scontrol" and stdin:
            said = [self._line(line, argv[1:]) for line in stdin.splitlines() if line != "quit"]
            out, err = ("".join(words) for words in zip(*said, strict=True))
            return subprocess.CompletedProcess(argv, 1, out, err)
        fault = self._fault(argv)
        if fault:
            return subprocess.CompletedProcess(argv, 1, "", fault + "\n")
        status, out, err = Tools(self.slurm, self.user).run(argv)
        return subprocess.CompletedProcess(argv, status, out, err)

    def _line(self, line: str, options: Sequence[str]) -> tuple[str, str]:
        """Return standard output, which repeats the line, and standard error of a command."""
        words, again = line.split(), f"scontrol: {line}\n"
        if words[:2] == ["show", "hostnames"]:
            return f"{again}{words[2]}\n", ""
        if len(words) == 1 and words[0] not in ("version", "ping"):
            return again, f"invalid keyword: {words[0]}\n"
        if words[:2] == ["show", "job"]:
            words = ["-a", *words[:2], "-d", "-o", *words[2:]]
            assert list(options) == ["-a", "-d", "-o"], options
        argv = ["scontrol", *words]
        fault = self._fault(argv)
        if fault:
            # Slurm names the job that it refuses to change.
            job = words[1].removeprefix("JobId=") if len(words) > 1 else ""
            is_answer = not is_unreachable(fault) and words[0] != "-a"
            return again, f"{fault} for job {job}\n" if is_answer else f"{fault}\n"
        _, out, err = Tools(self.slurm, self.user).run(argv)
        return again + out, err

    def _fault(self, argv: Sequence[str]) -> str:
        for ask in self.before:
            fault = ask(argv)
            if fault:
                return fault
        return (
            _AWAY.get(argv[0], f"slurm_update error: {UNREACHABLE}") if self.slurm.is_away else ""
        )


Said = tuple[int, str, str]  # status, standard output, standard error


@dataclass(frozen=True, slots=True)
class Tools:
    """The commands of one caller."""

    slurm: FakeSlurm
    user: str | None

    def run(self, argv: Sequence[str]) -> Said:
        """Return status, standard output and standard error of a command."""
        tool, *words = argv
        tools: dict[str, Callable[[list[str]], Said]] = {
            "squeue": self._squeue,
            "scontrol": self._scontrol,
            "scancel": self._scancel,
            "sbatch": self._sbatch,
            "sinfo": self._sinfo,
            "sshare": self._sshare,
        }
        return tools[tool](words)

    def _squeue(self, words: list[str]) -> Said:
        if words == ["-h"]:
            live = [job for job in self.slurm.jobs if job.is_live]
            return 0, "".join(f"{job.key} {job.state}\n" for job in live), ""
        jobs = self.slurm.jobs
        plain, (*options, _, fields) = ["-a", "-h", "-t", "all"], words
        if "-j" in options:
            *options, _, keys = options
            try:
                jobs = [job for key in keys.split(",") for job in self.slurm.find(key)]
            except Rejected as fault:
                if "," not in keys:
                    return 1, "", f"slurm_load_jobs error: {fault}\n"
                jobs = [
                    job
                    for job in jobs
                    if {job.key, str(job.array or job.number)} & set(keys.split(","))
                ]
        assert [word for word in options if word != "-r"] == plain, words
        parts = [part.partition(":") for part in fields.split(",")]
        return 0, "".join(
            "".join(_FACTS[name](self.slurm, job) + mark for name, _, mark in parts) + "\n"
            for job in jobs
        ), ""  # fmt: skip

    def _scontrol(self, words: list[str]) -> Said:
        version = ".".join(
            f"{part:02}" if n < 2 else str(part) for n, part in enumerate(self.slurm.version)
        )
        match words:
            case ["--version"]:
                return 0, f"slurm-wlm {version}\n", ""
            case ["show", "config"]:
                given = f"SlurmctldParameters = {self.slurm.parameters}\n"
                name = f"ClusterName = {self.slurm.name}\n"
                return 0, f"{_CONFIG}{name}{given}BOOT_TIME = {int(self.slurm.booted_s)}\n", ""
            case ["-a", "show", "partition", "-o"]:
                names = {name for node in self.slurm.nodes.values() for name in node.partitions}
                limit = self.slurm.most_time
                return 0, "".join(
                    f"PartitionName={name} Default=NO QoS=N/A MaxNodes=UNLIMITED MaxTime={limit} "
                    "MinNodes=0\n"
                    for name in sorted(names)
                ), ""  # fmt: skip
            case ["-a", "show", "node", "-d", "-o"]:
                nodes = (n for n in self.slurm.nodes.values() if n.name not in self.slurm.hidden)
                holders = self.slurm.holders()
                lines = (_node_line(node, holders[node.name]) for node in nodes)
                return 0, "".join(line + "\n" for line in lines), ""
            case ["-a", "show", "reservation", "-o"]:
                return 0, _reservations(self.slurm), ""
            case ["-a", "show", "job", "-d", "-o", *keys]:
                return self._show_jobs(keys)
            case ["release" | "uhold" | "hold" | "requeue" | "requeuehold" as verb, *keys]:
                return self._each(verb, keys)
            case ["notify", key, *said]:
                return self._notify(key, said)
            case ["update", target, *pairs] if target.startswith("JobId="):
                return self._update(target.removeprefix("JobId="), pairs)
            case ["update", target, *pairs] if target.startswith("NodeName="):
                return self._update_node(target.removeprefix("NodeName="), pairs)
        return 1, "", f"invalid keyword: {words[0]}\n"

    def _show_jobs(self, keys: Sequence[str]) -> Said:
        try:
            jobs = (
                [job for key in keys for job in self.slurm.find(key)] if keys else self.slurm.jobs
            )
        except Rejected as fault:
            return 1, "", f"slurm_load_jobs error: {fault}\n"
        # The tasks of an array that were not split are one record.
        shown = {job.number: job for job in reversed(jobs)}
        return 0, "".join(_job_line(self.slurm, job) + "\n" for job in reversed(shown.values())), ""

    def _each(self, verb: str, keys: Sequence[str]) -> Said:
        said = []
        for key in (key for listed in keys for key in _listed(listed)):
            try:
                for job in self.slurm.find(key):
                    self._may_change(job)
                    self._act(verb, job)
            except Rejected as fault:
                is_task = "_" in key
                said.append(f"{key}: {fault}\n" if is_task else f"{fault} for job {key}\n")
                if verb in ("release", "uhold", "hold"):
                    said.append(f"slurm_suspend error: {fault}\n")
        return int(bool(said)), "", "".join(said)

    def _notify(self, number: str, said: Sequence[str]) -> Said:
        try:
            if "_" in number:
                raise Rejected("Requested operation is presently disabled")
            for job in self.slurm.find(number):
                if self.user not in (None, job.user):
                    raise Rejected("Invalid user id")
                self.slurm.notify(job, " ".join(said))
        except Rejected as fault:
            return 1, "", f"job notify failure: {fault}\n"
        return 0, "", ""

    def _act(self, verb: str, job: FakeJob) -> None:
        match verb:
            case "release":
                self.slurm.release(job, by=self.user)
            case "uhold":
                self.slurm.hold(job, "user")
            case "hold":
                self.slurm.hold(job, "admin" if self.user is None else "user")
            case _:
                self.slurm.requeue(job, hold=verb == "requeuehold")

    def _update(self, key: str, pairs: Sequence[str]) -> Said:
        changes = [pair.partition("=")[::2] for pair in pairs]
        lone = {"NumNodes", "ReqNodeList"} & {name for name, _ in changes}
        if lone and "," in key:
            return 1, "", f"scontrol: error: Invalid job ID {key}\n"
        said = []
        for each in _listed(key):
            try:
                for job in self.slurm.find(each):
                    self._may_change(job)
                    self.slurm.update(job, changes)
            except Rejected as fault:
                is_sentence = str(fault).endswith("\n")
                said.append(
                    f"{fault}Request aborted\n" if is_sentence else f"{fault} for job {each}\n"
                )
        return int(bool(said)), "", "".join(said)

    def _update_node(self, name: str, pairs: Sequence[str]) -> Said:
        if name not in self.slurm.nodes:
            return 1, "", "slurm_update error: Invalid node name specified\n"
        state = dict(pair.partition("=")[::2] for pair in pairs).get("State", "")
        self.slurm.nodes[name].is_drained = state.upper() == "DRAIN"
        return 0, "", ""

    def _scancel(self, words: list[str]) -> Said:
        options = [word for word in words if word.startswith("--")]
        is_signal, said = bool(options), []
        name = options[0].removeprefix("--signal=") if is_signal else ""
        assert not name or (name == "USR1") == (options[1:] == ["--batch"]), words
        for key in words[len(options) :]:
            try:
                for job in self.slurm.find(key):
                    self._may_change(job)
                    if is_signal:
                        self.slurm.signal(job, name)
                    else:
                        self.slurm.cancel(job)
            except Rejected as fault:
                # The cancellation of an unknown job is no error.
                if is_signal or "denied" in str(fault):
                    said.append(f"scancel: error: Kill job error on job id {key}: {fault}\n")
        return int(bool(said)), "", "".join(said)

    def _may_change(self, job: FakeJob) -> None:
        if self.user not in (None, job.user):
            raise Rejected("Access/permission denied")

    def _sbatch(self, words: list[str]) -> Said:
        options, _ = _options(words)
        try:
            job = self.slurm.submit(**_submission(self.slurm, options, self.user or "root"))
        except Rejected as fault:
            return 1, "", f"sbatch: error: Batch job submission failed: {fault}\n"
        number = job.array or job.number
        return 0, f"{number}\n" if "parsable" in options else f"Submitted batch job {number}\n", ""

    def _sinfo(self, words: list[str]) -> Said:
        if words == ["-a", "-h", "-o", "%P|"]:
            names = dict.fromkeys(p for node in self.slurm.nodes.values() for p in node.partitions)
            return 0, "".join(f"{name}{'*' * (name == 'main')}|\n" for name in names), ""
        assert words == ["-h", "-N", "-o", "%N|%G|%P|%L|%l|%b"], words
        rows = [(n, p) for n in self.slurm.nodes.values() for p in n.partitions]
        lines = (
            f"{node.name}|{_gres(node)}|{name}{'*' * (name == 'main')}|n/a|infinite|"
            f"{','.join(node.features) or '(null)'}\n"
            for node, name in rows
        )
        return 0, "".join(lines), ""

    def _sshare(self, words: list[str]) -> Said:
        if not self.slurm.shares:
            return 1, "", "You are not running a supported accounting_storage plugin\n"
        shares = self.slurm.shares.items()
        return 0, "".join(f" {of}|{user}|{share:.6f}\n" for (of, user), share in shares), ""


def _listed(keys: str) -> list[str]:
    """Return the ids in `1,2_[0,5],3`."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", keys)


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return sbatch's long options and what follows them."""
    options: dict[str, str] = {}
    for number, word in enumerate(words):
        if not word.startswith("--"):
            return options, list(words[number:])
        name, _, value = word[2:].partition("=")
        options[name] = value
    return options, []


def _submission(slurm: FakeSlurm, options: Mapping[str, str], user: str) -> dict[str, Any]:
    """Return the arguments of FakeSlurm.submit; options that it does not model are ignored."""
    least, dash, most = options.get("nodes", "1").partition("-")
    is_counted = "nodes" in options
    per_node = options.get("gres") or _as_gres(options.get("gpus-per-node"))
    begin = options.get("begin", "").removeprefix("now+").removesuffix("seconds")
    asked = Asked(
        per_node=_asked(per_node),
        per_job=_asked(_as_gres(options.get("gpus"))),
        per_task=_asked(_as_gres(options.get("gpus-per-task"))),
        per_socket=_asked(_as_gres(options.get("gpus-per-socket"))),
        nodes=fold_out(options.get("nodelist", "")),
        min_nodes=int(least),
        max_nodes=(int(most) if dash else int(least)) if is_counted else None,
    )
    return {
        "asked": asked,
        "user": options.get("uid", user),
        "tasks": _numbers(options["array"]) if "array" in options else (),
        "throttle": int(options.get("array", "").partition("%")[2] or 0),
        "name": options.get("job-name", "wrap"),
        "comment": options.get("comment", ""),
        "partition": options.get("partition", "main"),
        "excluded": fold_out(options.get("exclude", "")),
        "dependency": int(options.get("dependency", "").removeprefix("afterok:") or 0),
        "reservation": options.get("reservation", ""),
        "may_requeue": "no-requeue" not in options,
        "nice": int(options.get("nice", 0)),
        "hold": "user" if "hold" in options else "",
        "is_exclusive": "exclusive" in options,
        "begins_s": slurm.now_s + float(begin) if begin else 0.0,
    }


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("%")[0].partition("-")
    return list(range(int(first), int(last or first) + 1))


def _as_gres(text: str | None) -> str | None:
    """Return `gpu:v100:2` for `v100:2`."""
    return None if text is None else ",".join(f"gpu:{part}" for part in text.split(","))


def _asked(text: str | None) -> Gpus | None:
    return None if text is None else parse_gpus(text)


def _or(text: str, otherwise: str = "(null)") -> str:
    return text or otherwise


def _time(seconds: float, otherwise: str = "N/A") -> str:
    return str(int(seconds)) if seconds else otherwise


def _tres(slurm: FakeSlurm, gpus: Gpus | None) -> str:
    """Return a request as squeue shows it; a cleared one is empty, not N/A."""
    if gpus is None:
        return "N/A"
    return ",".join(
        f"{slurm.prefix}gpu:{gpu_type + ':' if gpu_type else ''}{many}" for gpu_type, many in gpus
    )


def _num_nodes(job: FakeJob) -> str:
    """Return the number of nodes that squeue shows: after a run, that of the last run."""
    return str(len(job.ran_on) or job.asked.min_nodes)


def _nodes(job: FakeJob) -> tuple[str, ...]:
    """Return the nodes on which a job runs or has ended."""
    return () if job.state == "PENDING" else job.ran_on


def _begins(job: FakeJob) -> str:
    if job.state == "PENDING":
        return _time(job.begins_s)
    return _time(job.started_s)


def _eligible(slurm: FakeSlurm, job: FakeJob) -> str:
    """Return from when on it may start, as 22.05.8: not known while it is held or depends."""
    if job.hold or _dependency(slurm, job) != "(null)":
        return _time(0.0)
    return _time(max(job.begins_s, job.submitted_s))


def _priority(job: FakeJob) -> str:
    return "0" if job.hold else str(4_294_901_760 - job.rank - job.nice)


def fold(names: Sequence[str]) -> str:
    """Return node names as Slurm folds them: `n[1-2,5]`."""
    numbers = sorted(int(name[1:]) for name in names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"n{text}" if len(numbers) == 1 else f"n[{text}]" if numbers else ""


def _shares(slurm: FakeSlurm, job: FakeJob) -> str:
    """Return whether a job shares its nodes, as squeue shows it."""
    return "NO" if job.is_exclusive or slurm.version >= _EXCLUSIVE_APART else "OK"


# From here on Slurm shows elsewhere that a job has whole nodes.
_EXCLUSIVE_APART = (25, 5)
Fact = Callable[[FakeSlurm, FakeJob], str]
_FACTS: dict[str, Fact] = {
    "JobArrayID": lambda slurm, job: job.key,
    "JobID": lambda slurm, job: str(job.number),
    "State": lambda slurm, job: job.state,
    "Reason": lambda slurm, job: job.reason,
    "UserID": lambda slurm, job: str(slurm.uid),
    "UserName": lambda slurm, job: job.user,
    "Partition": lambda slurm, job: job.partition,
    "PriorityLong": lambda slurm, job: _priority(job),
    "Dependency": lambda slurm, job: _dependency(slurm, job),
    "ReqNodes": lambda slurm, job: fold(job.asked.nodes),
    "NodeList": lambda slurm, job: fold(_nodes(job)),
    "NumNodes": lambda slurm, job: _num_nodes(job),
    "tres-per-node": lambda slurm, job: _tres(slurm, job.asked.per_node),
    "tres-per-job": lambda slurm, job: _tres(slurm, job.asked.per_job),
    "tres-per-task": lambda slurm, job: _tres(slurm, job.asked.per_task),
    "tres-per-socket": lambda slurm, job: _tres(slurm, job.asked.per_socket),
    "RestartCnt": lambda slurm, job: str(job.restarts),
    "SubmitTime": lambda slurm, job: _time(job.submitted_s),
    "EligibleTime": lambda slurm, job: _eligible(slurm, job),
    "StartTime": lambda slurm, job: _begins(job),
    "EndTime": lambda slurm, job: _time(job.ended_s, "NONE"),
    "Reservation": lambda slurm, job: _or(job.reservation),
    "HetJobID": lambda slurm, job: str(job.het_id) if job.het_id else "N/A",
    "BatchFlag": lambda slurm, job: str(int(job.is_batch)),
    "exit_code": lambda slurm, job: str(job.exit_status),
    "Requeue": lambda slurm, job: str(int(job.may_requeue)),
    "QOS": lambda slurm, job: _or(job.qos),
    "Account": lambda slurm, job: _or(job.account),
    "Licenses": lambda slurm, job: _or(job.licenses),
    "TimeLimit": lambda slurm, job: "1:00:00",
    "NumTasks": lambda slurm, job: "1",
    "NTPerNode": lambda slurm, job: "0",
    "OverSubscribe": lambda slurm, job: _shares(slurm, job),
    "tres-alloc": lambda slurm, job: f"cpu=1,mem=100M,node={_num_nodes(job)},billing=1",
    "Name": lambda slurm, job: job.name,
    "Command": lambda slurm, job: "/home/alice/train.sh",
    "WorkDir": lambda slurm, job: "/home/alice",
    "Container": lambda slurm, job: "(null)",
    "Feature": lambda slurm, job: _or("&".join(sorted(job.features))),
    "Comment": lambda slurm, job: _or(job.comment),
}


def _dependency(slurm: FakeSlurm, job: FakeJob) -> str:
    others = slurm.before(job)
    is_met = all(other.state == "COMPLETED" for other in others)
    return "(null)" if not job.dependency or is_met else f"afterok:{job.dependency}(unfulfilled)"


_CONFIG = """Configuration data as of 1800000000
SlurmctldHost[0]        = ctl(127.0.0.1)
SlurmctldPort           = 6817
"""


def _gres(node: FakeNode) -> str:
    return ",".join(f"gpu:{gpu_type}:{many}" for gpu_type, many in node.gpus.items()) or "(null)"


def _node_line(node: FakeNode, jobs: Sequence[FakeJob]) -> str:
    """Return a node as scontrol shows it; `jobs` hold GPUs of it."""
    busy = sum(sum(map(len, job.held[node.name].values())) for job in jobs)
    state = "IDLE" if not jobs else "ALLOCATED" if busy == sum(node.gpus.values()) else "MIXED"
    state = "DOWN" if node.is_down else state
    flags = ["COMPLETING"] if any(job.state == "COMPLETING" for job in jobs) else []
    flags += ["DRAIN"] if node.is_drained else []
    features = ",".join(node.features) or "(null)"
    started = "1799999000" if node.has_reported else "None"
    return (
        f"NodeName={node.name} Arch=x86_64 CoresPerSocket=16  CPUAlloc={len(jobs)} CPUEfctv=16 "
        f"CPUTot=16 CPULoad=0.50 AvailableFeatures={features} ActiveFeatures={features} "
        f"Gres={_gres(node)} NodeAddr=127.0.0.1 NodeHostName=localhost Port=17001 "
        f"Version=22.05.8 OS=Linux 6.1 #1 SMP RealMemory=8000 AllocMem={100 * len(jobs)} "
        f"FreeMem=7000 Sockets=1 Boards=1 State={'+'.join([state, *flags])} ThreadsPerCore=1 "
        f"TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={','.join(node.partitions)}  "
        f"BootTime=1799990000 SlurmdStartTime={started} LastBusyTime=1799999000 "
        f"CfgTRES=cpu=16,mem=8000M,billing=16 AllocTRES= CapWatts=n/a CurrentWatts=0"
    )


def _layout(job: FakeJob) -> Iterator[tuple[str, str]]:
    """Yield the nodes on which a job holds the same GPUs, and those GPUs."""
    alike: dict[str, list[str]] = {}
    for name, by_type in job.held.items():
        parts = [
            f"gpu:{gpu_type}:{len(ids)}(IDX:{_folded(ids)})" for gpu_type, ids in by_type.items()
        ]
        alike.setdefault(",".join(parts), []).append(name)
    for gres, names in alike.items():
        yield fold(names), gres


def _folded(numbers: Sequence[int]) -> str:
    return fold([f"n{number}" for number in numbers]).removeprefix("n").strip("[]")


def _job_line(slurm: FakeSlurm, job: FakeJob) -> str:
    is_array = job.task is not None
    throttle = f" ArrayTaskThrottle={job.throttle}" if job.throttle else ""
    array = f" ArrayJobId={job.array} ArrayTaskId={job.task}{throttle}" if is_array else ""
    het = f" HetJobId={job.het_id} HetJobOffset={job.het_offset}" if job.het_id else ""
    total: dict[str, int] = {}
    for (_, gpu_type), many in job.gpus.items():
        total[gpu_type] = total.get(gpu_type, 0) + many
    gres = ",".join(f"gpu:{gpu_type}:{many}" for gpu_type, many in total.items())
    parts = "".join(f"  Nodes={n} CPU_IDs=0 Mem=100 GRES={g}" for n, g in _layout(job))
    held = f" JOB_GRES={_or(gres)}{parts}" if job.held else ""
    asked = job.asked
    tres = "".join(
        f" {name}={_tres(slurm, gpus)}"
        for name, gpus in (
            ("TresPerJob", asked.per_job),
            ("TresPerNode", asked.per_node),
            ("TresPerSocket", asked.per_socket),
            ("TresPerTask", asked.per_task),
        )
        if gpus is not None
    )
    most = "" if asked.max_nodes is None or job.ran_on else f"-{asked.max_nodes}"
    cron = " CronJob=Yes" if job.is_cron else ""
    shares = _shares(slurm, job)
    if slurm.version >= _EXCLUSIVE_APART:
        shares += f" Exclusive={'NODE' if job.is_exclusive else 'NO'}"
    comment = f"Comment={job.comment} " if job.comment else ""
    features = f"Features={_or('&'.join(job.features))} "
    if job.prefers:
        features += f"Prefer={job.prefers} "
    memory = f"MinMemoryCPU={job.core_memory_mb}M"
    if job.node_memory_mb or not job.core_memory_mb:
        memory = f"MinMemoryNode={job.node_memory_mb}M"
    return (
        f"JobId={job.number}{array}{het} JobName={job.name} UserId={job.user}({slurm.uid}) "
        f"GroupId={job.user}({slurm.uid}) MCS_label=N/A Priority={_priority(job)} Nice={job.nice} "
        f"Account={_or(job.account)} QOS={_or(job.qos)} JobState={job.state} "
        f"Reason={job.reason.replace(' ', '_')} "
        f"Dependency={_dependency(slurm, job)} Requeue={int(job.may_requeue)} "
        f"Restarts={job.restarts} BatchFlag={int(job.is_batch)} Reboot=0 "
        f"ExitCode={job.exit_status >> 8}:{job.exit_status & 127} "
        f"DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit={_limit(job)} TimeMin=N/A "
        f"SubmitTime={_time(job.submitted_s)} StartTime={_begins(job)} Deadline=N/A{cron} "
        f"Partition={job.partition} AllocNode:Sid=localhost:1 "
        f"ReqNodeList={_or(fold(asked.nodes))} ExcNodeList={_or(fold(job.excluded))} "
        f"NodeList={fold(_nodes(job))} NumNodes={_num_nodes(job)}{most} NumCPUs=1 NumTasks=1 "
        f"CPUs/Task={job.task_cores} ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=100M,node=1,billing=1 "
        "Socks/Node=* "
        f"NtasksPerN:B:S:C=0:0:*:* CoreSpec=*{held} MinCPUsNode={job.node_cores} {memory} "
        f"{features}DelayBoot=00:00:00 OverSubscribe={shares} "
        f"Contiguous=0 Licenses={_or(job.licenses)} Network=(null) Command=(null) WorkDir=/tmp "
        f"{comment}StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null{tres}"
    )


def _limit(job: FakeJob) -> str:
    hours, minutes = divmod(job.limit_min, 60)
    return f"{hours:02}:{minutes:02}:00" if job.limit_min else "UNLIMITED"


def _reservations(slurm: FakeSlurm) -> str:
    if not slurm.reserved:
        return "No reservations in the system\n"
    names = ",".join(sorted(slurm.reserved))
    count = len(slurm.reserved)
    return f"ReservationName=repair Flags=MAINT Nodes={names} NodeCnt={count} State=INACTIVE\n"
