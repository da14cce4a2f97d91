"""How a simulated Slurm is configured and how its users write, from words as `slurm:list:open`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import PolicyError


class Form(StrEnum):
    """The form of a request for several GPUs."""

    # --gpus=N: any number of GPUs on any node.
    GPUS = "gpus"
    # --nodes=K --gpus-per-node=G, on the fewest nodes.
    NODES = "nodes"
    # The same with -C "[a|b|c]", the fastest type first: one type, never a mixture.
    LIST = "list"


class Types(StrEnum):
    """Which of the GPU types on which a job runs its user allows."""

    ANY = "any"
    # Those with at least .4 of the throughput on the fastest.
    OPEN = "open"
    # The one on which the job would end first by what squeue shows at submission.
    LOOK = "look"
    # A third of the users names the fastest, the others none.
    HALF = "half"
    # The type that the job had in the history.
    RECORDED = "recorded"


class FairShare(StrEnum):
    """How priority/multifactor makes a factor of what users have used."""

    TREE = "tree"
    CLASSIC = "classic"
    NO = "no"


class Preempt(StrEnum):
    """PreemptMode: what becomes of running jobs for one of a QOS with a higher priority."""

    NO = "no"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    # A suspended job keeps its GPUs, so none makes room; only the order is another.
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """slurm.conf, as far as it is simulated, and the users' habits; times in seconds.

    The defaults are those of a Slurm that is set up well for GPUs: fair tree, age, billing by
    GPUs (TRESBillingWeights), backfill that looks a week ahead, and node weights in the order in
    which the cluster names its GPU types.
    """

    form: Form = Form.NODES
    types: Types = Types.ANY
    fairshare: FairShare = FairShare.TREE
    # PriorityWeightFairshare, PriorityWeightAge, PriorityWeightJobSize.
    weight_fairshare: float = 10_000.0
    weight_age: float = 3_000.0
    weight_size: float = 0.0
    # PriorityWeightQOS; the QOS with their priorities, which are 0 for all others.
    weight_qos: float = 0.0
    qos: tuple[tuple[str, float], ...] = ()
    # Of jobs of a QOS with a lower priority; and in how many seconds requeued ones may start again.
    preempt: Preempt = Preempt.NO
    requeue_delay: float = 121.0
    # PriorityMaxAge, PriorityDecayHalfLife (0: nothing decays), PriorityCalcPeriod.
    max_age: float = 7 * 86_400.0
    half_life: float = 7 * 86_400.0
    calc_period: float = 300.0
    # SchedulerParameters; bf_max_job_test is a number of jobs.
    bf_window: float = 7 * 86_400.0
    bf_resolution: float = 60.0
    bf_max_job_test: float = 500.0
    # Slurm's version.
    release: float = 22.05
    # How often the queue is looked at; 0: at each arrival and end.
    bf_interval: float = 0.0
    # Slurm's own, for plays in compressed time: by what a test of a later start begins to group
    # the ends of running jobs.
    test_window: float = 30.0

    @property
    def is_newer(self) -> bool:
        """Whether it is 24.11 or newer, in which some rules are others."""
        return self.release >= 24.0

    @property
    def stops(self) -> bool:
        """Whether running jobs make room for others."""
        return self.preempt in (Preempt.REQUEUE, Preempt.CANCEL)

    def qos_priority(self, name: str) -> float:
        """Return the priority of a QOS."""
        return dict(self.qos).get(name.lower(), 0.0)

    def qos_factor(self, name: str) -> float:
        """Return the factor of a QOS, from 0 to 1 for the highest."""
        highest = max((priority for _, priority in self.qos), default=0.0)
        return self.qos_priority(name) / highest if highest else 0.0


_TIMES = frozenset(
    "max_age half_life calc_period bf_window bf_resolution bf_interval test_window "
    "requeue_delay".split()
)
# May be 0.
_WEIGHTS = frozenset(
    "weight_fairshare weight_age weight_size weight_qos half_life bf_interval requeue_delay".split()
)
_HABITS: dict[str, tuple[str, Any]] = {
    **{str(form): ("form", form) for form in Form},
    **{str(types): ("types", types) for types in Types},
    **{f"fairshare={kind}": ("fairshare", kind) for kind in FairShare},
    **{f"preempt={mode}": ("preempt", mode) for mode in Preempt},
}
_NUMBERS = tuple(each.name for each in fields(SlurmSettings) if each.type == "float")


def parse_settings(words: Iterable[str]) -> SlurmSettings:
    """Return the settings of words such as `list`, `open` and `bf_window=1-0`.

    Times are written as Slurm's time limits, or as a number of seconds such as `30s`. Raises
    PolicyError for a word that is none.
    """
    found: dict[str, Any] = {}
    for word in words:
        lower = word.strip().lower()
        name, _, text = lower.partition("=")
        if lower in _HABITS:
            field, value = _HABITS[lower]
            found[field] = value
        elif name in _NUMBERS:
            found[name] = _number(name, text, word)
        elif name == "qos":
            found[name] = tuple(_qos(part, word) for part in text.split("+"))
        else:
            known = ", ".join((*_HABITS, *(f"{name}=" for name in _NUMBERS), "qos="))
            raise PolicyError(f"{word!r} is not one of {known}")
    return replace(SlurmSettings(), **found)


def _qos(part: str, word: str) -> tuple[str, float]:
    name, _, text = part.partition("=")
    if not name or len(text) > 9 or not (text.isascii() and text.isdigit()):
        raise PolicyError(f"{word!r}: expected priorities, such as qos=urgent=1000+normal=10")
    return name, float(text)


def _number(name: str, text: str, word: str) -> float:
    is_time = name in _TIMES
    value = parse_time_limit(text) if is_time and not text.endswith("s") else None
    digits = text.removesuffix("s") if is_time else text
    if value is None and len(digits) <= 12 and digits.isascii():
        value = float(digits) if digits.replace(".", "", 1).isdigit() else None
    if value is None or (value == 0 and name not in _WEIGHTS):
        expected = "a time such as 1-0, 12:00:00 or 30s" if is_time else "a number"
        raise PolicyError(f"{word!r}: expected {expected}")
    return value
