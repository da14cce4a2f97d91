"""The faults that operators cause: changes of Slurm's configuration below a running hadard."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.case import Case
from chaos.faults import Kind
from chaos.slurm_conf import Change
from chaos.workload import NEW_TYPE
from ClusterShell.NodeSet import NodeSet

if TYPE_CHECKING:
    from chaos.injecting import Injector

# How long running jobs may keep a drained node from being removed.
_EMPTY_WITHIN_S = 30.0
# How long it has to be empty in all samples: hadard may be about to put a job there.
_EMPTY_FOR_S = 3.0
# A name with two numbers, as many sites have.
_NEW_NAME = "compute-0-3"
# Changes of the partition, and what takes each of them back.
_PARTITION = (
    ["State=DOWN"],
    ["State=INACTIVE"],
    ["Nodes=n1,n3,n6"],
    ["MaxTime=60"],
    ["PriorityTier=2", "MaxNodes=1"],
)
_PARTITION_AGAIN = "State=UP Nodes=ALL MaxTime=UNLIMITED PriorityTier=1 MaxNodes=UNLIMITED".split()
_QOS = ("GrpTRES=gres/gpu=4", "MaxJobsPerUser=2", "MaxTRESPerJob=gres/gpu=2", "Priority=50")
_QOS_AGAIN = "GrpTRES=gres/gpu=-1 MaxJobsPerUser=-1 MaxTRESPerJob=gres/gpu=-1 Priority=0".split()
# Warnings that every command of some sites writes, for what is in their slurm.conf.
_WARNINGS = (
    "error: Ignoring obsolete ControlMachine= option. Please use SlurmctldHost= instead.",
    "error: NodeNames=n1 CPUs=16 match no Sockets, Sockets*CoresPerSocket, or "
    "Sockets*CoresPerSocket*ThreadsPerCore. Resetting CPUs.",
    "error: Duplicated GresTypes=gpu,gpu\nwarning: MemSpecLimit is ignored",
    "error: Parse error in file cgroup.conf line 1: ConstrainCores",
)


@dataclass
class Operators:
    """What operators do, through the injector."""

    injector: Injector

    def handlers(self) -> dict[Kind, Callable[[Case], None]]:
        """Return the method of each kind."""
        return {
            Kind.NODE_REMOVED: self._move_node,
            Kind.NODE_RENAMED: self._move_node,
            Kind.GPUS_RETYPED: self._retype,
            Kind.GPUS_UNTYPED: self._retype,
            Kind.PARTITION: self._partition,
            Kind.FEATURES: self._features,
            Kind.QOS: self._qos,
            Kind.FAIL_OVER: self._fail_over,
            Kind.NOISE: self._warn,
        }

    def _may_change(self, case: Case) -> bool:
        """Return whether slurm.conf may be changed now, once at a time; otherwise skip the case."""
        if self.injector.changed_nodes:
            self.injector.skip(case, "slurm.conf is another already")
        elif self.injector.is_controller_away or self.injector.has_failed_over:
            self.injector.skip(case, "slurmctld is away, or its backup serves")
        else:
            return True
        return False

    def _num_gpus_held(self, node: str) -> int:
        live = self.injector.observer.live()
        return sum(gpu.node == node for job in live for gpu in job.gpus)

    def _move_node(self, case: Case) -> None:
        """Drain a node, and remove or rename it once it is drained."""
        injector, tasks = self.injector, self.injector.workload.tasks
        if not self._may_change(case):
            return
        # Slurm ends a job that waits for a node which its owner names and slurm.conf lacks.
        named = {tasks[job.key].named for job in injector.observer.live()}
        nodes = [name for name in injector.world.nodes if name not in named | injector.out]
        if not nodes:
            return injector.skip(case, "users have named all nodes")
        node = min(nodes, key=self._num_gpus_held)
        injector.out.add(node)
        injector.changed_nodes.add(node)
        if not self._has_emptied(node):
            again = ["update", f"NodeName={node}", "State=RESUME"]
            injector.wait(lambda: injector.order(again), 30)
            self._forget(node)
            return injector.skip(case, f"{node} is not empty within {_EMPTY_WITHIN_S:g} s")
        name = _NEW_NAME if case.fault.kind is Kind.NODE_RENAMED else ""
        case.done = f"{node} is {name or 'gone'} for {case.fault.lasts_s:.1f} s"
        self._reconfigure(case, Change(node, name))

    def _has_emptied(self, node: str) -> bool:
        """Drain a node; return whether no job is on it or has to start there, after a while.

        Slurm ends a job that waits for a node which slurm.conf lacks, so jobs that hadard has put
        there have the same time to be put elsewhere.
        """
        live = self.injector.observer.live
        drain = ["update", f"NodeName={node}", "State=DRAIN", "Reason=chaos"]
        since_s = math.inf

        def is_empty() -> bool:
            # A job that completes there shows no GPUs. If its node leaves the configuration, Slurm
            # 22.05.8 makes an operator's hold of hadard's.
            nonlocal since_s
            observer = self.injector.observer
            is_drained = observer.nodes.get(node, "").startswith("IDLE+DRAIN")
            is_free = all(node not in NodeSet(job.requested_nodes) for job in live())
            since_s = min(since_s, observer.newest_s) if is_drained and is_free else math.inf
            return observer.newest_s - since_s >= _EMPTY_FOR_S

        return self.injector.order(drain) and self.injector.wait(is_empty, _EMPTY_WITHIN_S)

    def _retype(self, case: Case) -> None:
        """Give GPUs that jobs hold another type, or none."""
        injector = self.injector
        if not self._may_change(case):
            return
        held = [gpu for job in injector.observer.live() for gpu in job.gpus]
        # Without a type the GPU that a job holds is in no line of slurm.conf that could be changed.
        held = sorted({g for g in held if g.gpu_type and g.node not in injector.out}, key=str)
        if not held:
            return injector.skip(case, "no job holds a GPU")
        gpu = held[int(case.fault.pick * len(held))]
        new_type = NEW_TYPE if case.fault.kind is Kind.GPUS_RETYPED else ""
        injector.changed_nodes.add(gpu.node)
        case.done = f"{gpu.gpu_type} of {gpu.node} is {new_type or 'no type'}"
        self._reconfigure(case, Change(gpu.node, gpu_type=gpu.gpu_type, new_type=new_type))

    def _reconfigure(self, case: Case, change: Change) -> None:
        injector = self.injector
        injector.is_controller_away = True
        injector.world.reconfigure(change)
        injector.is_controller_away = False

        def undo() -> None:
            injector.wait(lambda: not injector.is_controller_away, 30)
            if change.name:
                self._has_emptied(change.name)
            injector.is_controller_away = True
            injector.world.restore(change)
            injector.is_controller_away = False
            self._forget(change.node)

        injector.later(case, undo)
        case.is_well = lambda: change.node in injector.observer.nodes and injector.are_nodes_up()

    def _forget(self, node: str) -> None:
        self.injector.out.discard(node)
        self.injector.changed_nodes.discard(node)

    def _partition(self, case: Case) -> None:
        words = _PARTITION[int(case.fault.pick * len(_PARTITION))]
        case.done = f"{' '.join(words)} for {case.fault.lasts_s:.1f} s"
        name = f"extra{case.number}"
        create = ["create", f"PartitionName={name}", "Nodes=n2,n4", "State=UP"]
        if case.fault.share < 0.3:
            words, case.done = create, f"a new one, {name}, for {case.fault.lasts_s:.1f} s"
        else:
            words = ["update", "PartitionName=main", *words]
        self.injector.say(case, ["scontrol", *words])

        def undo() -> None:
            if words is create:
                # A restart of slurmctld forgets it as well.
                self.injector.order(["delete", f"PartitionName={name}"])
                return
            names = {word.partition("=")[0] for word in words}
            again = [word for word in _PARTITION_AGAIN if word.partition("=")[0] in names]
            again = ["update", "PartitionName=main", *again]
            if "State=UP" in again:
                # Of a slurmctld that has just started, the world opens the partition.
                observer = self.injector.observer
                self.injector.wait(lambda: "UNREPORTED" not in observer.nodes.values(), 20)
            self.injector.wait(lambda: self.injector.order(again), 30)

        self.injector.later(case, undo)

    def _features(self, case: Case) -> None:
        nodes = [n for n in self.injector.world.nodes if n not in self.injector.changed_nodes]
        node = nodes[int(case.fault.pick * len(nodes))]
        shown = self.injector.world.run(["scontrol", "show", "node", "-o", node], limit_s=10)
        known = next((w.partition("=")[2] for w in shown.out.split() if "ActiveFeatures=" in w), "")
        if not known:
            return self.injector.skip(case, "slurmctld is away")
        case.done = f"{node} has nvlink, too, for {case.fault.lasts_s:.1f} s"

        def features(value: str) -> list[str]:
            both = [f"AvailableFeatures={value}", f"ActiveFeatures={value}"]
            return ["update", f"NodeName={node}", *both]

        self.injector.say(case, ["scontrol", *features(f"{known},nvlink")])
        self.injector.later(
            case, lambda: self.injector.wait(lambda: self.injector.order(features(known)), 20)
        )

    def _qos(self, case: Case) -> None:
        limit = _QOS[int(case.fault.pick * len(_QOS))]
        name = "extra" if case.fault.share < 0.5 else "normal"
        case.done = f"{name}: {limit}, for {case.fault.lasts_s:.1f} s"
        argv = ["sacctmgr", "--immediate", "--quiet", "modify", "qos", name, "set"]
        self.injector.say(case, [*argv, limit])

        def undo() -> None:
            is_back = lambda: self.injector.world.run([*argv, *_QOS_AGAIN]).status == 0  # noqa: E731
            self.injector.wait(is_back, 30)

        self.injector.later(case, undo)

    def _fail_over(self, case: Case) -> None:
        injector = self.injector
        if not self._may_change(case):
            return
        case.done = f"to its backup for {case.fault.lasts_s:.1f} s"
        injector.world.fail_over()
        injector.has_failed_over = True

        def fail_back() -> None:
            injector.has_failed_over = False
            injector.restart_controller()

        injector.later(case, fail_back)
        case.is_well = injector.are_nodes_up

    def _warn(self, case: Case) -> None:
        text = _WARNINGS[int(case.fault.pick * len(_WARNINGS))]
        self.injector.world.warn(text)
        case.done = f"always: {text.splitlines()[0][:60]}"
