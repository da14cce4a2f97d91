"""What copies of a job exchange in the facts of their files, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hadar_slurm.runtime.files.identity import Identity
from hadar_slurm.runtime.files.ranges import Ranges

# From version 3 on an end may lack the optimiser's state, and contributions be differences.
VERSION, OLDER_VERSIONS = 3, (1, 2)


class OtherVersionError(ValueError):
    """A file is whole, and was written by a version that this one cannot read."""


@dataclass(frozen=True)
class SlotEnd:
    """What the copies know at the end of averaging interval `slot`; times in seconds."""

    slot: int
    total_steps: int
    done: Ranges = field(default_factory=Ranges)
    # The steps of the next interval by copy, the fastest first: they should finish in this order.
    dealt: Mapping[int, Ranges] = field(default_factory=dict)
    # The steps that each may train, of the interval after that, while it waits for its end.
    ahead: Mapping[int, Ranges] = field(default_factory=dict)
    length_s: float = 0.0  # how long the next interval is to last
    made_s: float = 0.0  # how long averaging the parameters took; 0 at the start of the job
    averages: int = 0  # the number of intervals so far to which two copies or more contributed
    # Distinguishes ends of one interval: another is made where this one could not be read.
    id: str = ""
    identity: Identity | None = None  # None in the end of an older release
    # Why nothing of the newest intervals could be used: a line for each without finite values.
    spoilt: tuple[str, ...] = ()
    together: bool = False  # the next interval is trained synchronously; nothing is dealt then
    # Copies between which the exchange of gradients was too slow to train synchronously.
    costly: tuple[int, ...] = ()
    stopped: str = ""  # why the training is over although steps are left
    rate_factor: float = 1.0  # of the learning rate, by the number of copies, at this end
    # Whether contributions to the next interval have the optimiser's state.
    with_state: bool = True
    # The newest slots, two at most, whose ends have it; none: this one, as in an older release.
    states: tuple[int, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SlotEnd:
        """Return the end that facts describe; raises KeyError, TypeError and ValueError."""
        return cls(
            slot=int(facts["slot"]),
            total_steps=int(facts["total_steps"]),
            done=Ranges.of(facts["done"]),
            dealt={int(copy): Ranges.of(pairs) for copy, pairs in facts["dealt"]},
            ahead={int(copy): Ranges.of(pairs) for copy, pairs in facts.get("ahead", ())},
            length_s=float(facts["length_s"]),
            made_s=float(facts.get("made_s", 0.0)),
            averages=int(facts.get("averages", 0)),
            id=str(facts["id"]),
            identity=Identity.of(facts.get("fingerprint")),
            spoilt=tuple(str(why) for why in facts.get("spoilt", ())),
            together=facts.get("together") is True,
            costly=tuple(int(copy) for copy in facts.get("costly", ())),
            stopped=str(facts.get("stopped", "")),
            rate_factor=float(facts.get("rate_factor", 1.0)),
            with_state=facts.get("with_state") is not False,
            states=tuple(int(slot) for slot in facts.get("states", ())),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Return the end as values for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "identity"},
            "version": VERSION,
            "done": self.done.pairs,
            "dealt": [[copy, steps.pairs] for copy, steps in self.dealt.items()],
            "ahead": [[copy, steps.pairs] for copy, steps in self.ahead.items()],
            "fingerprint": self.identity.facts if self.identity else None,
        }

    @property
    def state_slots(self) -> tuple[int, ...]:
        """Return the newest slots whose ends have the optimiser's state, at this end."""
        return self.states or (self.slot,)

    @property
    def has_state(self) -> bool:
        """Whether the file of this end has the optimiser's state."""
        return self.state_slots[-1] == self.slot

    @property
    def is_exact(self) -> bool:
        """Whether contributions to the next interval are exact: of one copy, or to the last."""
        dealt = [steps for steps in self.dealt.values() if len(steps)]
        return len(dealt) < 2 or sum(map(len, dealt)) >= len(self.todo)

    @property
    def is_complete(self) -> bool:
        """Whether no step is left to train."""
        return bool(self.stopped) or len(self.done) >= self.total_steps

    @property
    def todo(self) -> Ranges:
        """Return the steps that are left."""
        return Ranges.of([(0, self.total_steps)]) - self.done


@dataclass(frozen=True)
class Contribution:
    """What a copy trained in a slot."""

    copy: int
    slot: int
    base: str  # the id of the end that it started from
    done: Ranges
    seconds: float  # how long training took
    fault: str = ""  # why nothing of it is to be used; there are no tensors then
    is_checked: bool = False  # the copy has found its tensors finite
    with_state: bool = True  # it has the optimiser's state

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Contribution:
        """Return the contribution that facts describe; raises KeyError, TypeError, ValueError."""
        return cls(
            copy=int(facts["copy"]),
            slot=int(facts["slot"]),
            base=str(facts["base"]),
            done=Ranges.of(facts["done"]),
            seconds=float(facts["seconds"]),
            fault=str(facts.get("fault", "")),
            is_checked=facts.get("is_checked") is True,
            with_state=facts.get("with_state") is not False,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Return the contribution as values for JSON."""
        return {**vars(self), "version": VERSION, "done": self.done.pairs}
