"""Injects the faults: one method for each kind, and the action that ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.case import Case, Undo
from chaos.faults import Fault, Kind
from chaos.keeping import Keeper
from chaos.observer import Observer
from chaos.operators import Operators
from chaos.owners import Owners
from chaos.sabotage import Order
from chaos.workload import Workload
from chaos.world import Ran, World

# How long an order may wait for its step; then the fault continues without it or is skipped.
_STEP_LIMIT_S = 5.0
# Changes of the configuration that an operator makes and takes back.
_CHANGES: Sequence[dict[str, object]] = (
    {"policy": "srsf"},
    {"policy": "gavel-max-min"},
    {"policy": "hadar-paper"},
    {"round_seconds": 3},
    {"mode": "observe"},
    {"mode": "advise"},
    {"mode": "steer"},
    {"partitions": "{main: observe}"},
)
_BROKEN = ("policy: nobody-knows-it\n", "round_seconds: -1\n", "mode: [\n", "")


@dataclass
class Injector:
    """Injects faults into a world."""

    world: World
    keeper: Keeper
    observer: Observer
    workload: Workload
    wait: Callable[[Callable[[], bool], float], bool]
    out: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    # Nodes that are removed, renamed or have other GPUs in slurm.conf now.
    changed_nodes: set[str] = field(default_factory=set)
    is_controller_away: bool = False
    has_failed_over: bool = False
    is_configuration_other: bool = False
    _handlers: dict[Kind, Callable[[Case], None]] = field(init=False)

    def __post_init__(self) -> None:
        self._handlers = {
            Kind.KILL_AT_STEP: self._kill_at_step,
            Kind.KILL: self._kill,
            Kind.STOP: self._stop,
            Kind.STOP_AND_KILL: self._stop,
            Kind.TERMINATE: self._terminate,
            Kind.RELOAD: self._reload,
            Kind.RELOAD_BROKEN: self._reload_broken,
            Kind.DISABLE: self._disable,
            Kind.CONTROLLER_RESTART: self._controller,
            Kind.CONTROLLER_AWAY: self._controller,
            Kind.NODE_DEATH: self._node,
            Kind.NODE_STOP: self._node,
            Kind.NODE_CUT: self._node,
            Kind.DRAIN: self._drain,
            Kind.FULL_JOURNAL: self._fill,
            Kind.FULL_STATE: self._fill,
            Kind.FULL_RUN: self._fill,
            Kind.LIE: self._lie,
            Kind.TIME_OUT: self._lie,
            Kind.BLIND: self._blind,
            Kind.HANG: self._hang,
            Kind.CLOCK: self._clock,
            **Owners(self).handlers(),
            **Operators(self).handlers(),
        }

    def inject(self, number: int, fault: Fault) -> Case:
        """Inject a fault, and return its case."""
        case = Case(number, fault, time.time())
        if fault.kind in self.world.missing:
            self.skip(case, self.world.missing[fault.kind])
        else:
            self._handlers[fault.kind](case)
        if case.undo is None and case.ended_s is None:
            case.ended_s = time.time()
        return case

    def skip(self, case: Case, why: str) -> None:
        case.is_skipped, case.done, case.ended_s = True, why, time.time()
        case.well_s = case.ended_s

    def later(self, case: Case, undo: Undo, after_s: float | None = None) -> None:
        case.undo = undo
        case.undo_at_s = time.time() + (case.fault.lasts_s if after_s is None else after_s)

    # hadard.

    def has_hadard(self, case: Case) -> bool:
        """Wait for a working hadard; skip the fault if there is none."""
        if self.wait(lambda: self.observer.gone_since_s is None and self.keeper.is_alive, 35.0):
            return True
        self.skip(case, "no hadard is there")
        return False

    def _expect_end(self, case: Case) -> None:
        fault = case.fault
        self.keeper.expect(fault.restart_s, has_stop_post=fault.has_stop_post)
        post = "hadar release, " if fault.has_stop_post else ""
        case.done += f"; {post}back after {fault.restart_s:.1f} s"
        pid = self.keeper.pid
        case.is_well = lambda: self.keeper.pid != pid
        # The fault ends when hadard is restarted.
        self.later(case, lambda: None, fault.restart_s)

    def _kill_at_step(self, case: Case) -> None:
        fault = case.fault
        if not self.has_hadard(case):
            return
        control, where = self.world.control, f"{fault.when} {fault.step}"
        control.give(Order("kill", fault.step, fault.when, fault.skip, fault.share))
        self._expect_end(case)
        how = case.done
        self.wait(lambda: control.fired() is not None, _STEP_LIMIT_S)
        fired = control.fired()
        control.withdraw()
        if fired is None:
            self.keeper.send(signal.SIGKILL)
            where = f"{where} did not come within {_STEP_LIMIT_S:g} s; killed so"
        elif "made" in fired:
            where += f", after {fired['made']} of {fired['of']} changes"
        case.begun_s = time.time()
        case.done = where + how
        self.later(case, lambda: None, fault.restart_s)

    def _kill(self, case: Case) -> None:
        if self.has_hadard(case):
            case.done = "at once"
            self._expect_end(case)
            self.keeper.send(signal.SIGKILL)

    def _terminate(self, case: Case) -> None:
        if self.has_hadard(case):
            self.keeper.expect(case.fault.restart_s, has_stop_post=True)
            case.done = f"SIGTERM; hadar release, back after {case.fault.restart_s:.1f} s"
            pid = self.keeper.pid
            case.is_well = lambda: self.keeper.pid != pid
            self.keeper.send(signal.SIGTERM)
            self.later(case, lambda: None, case.fault.restart_s)

    def _stop(self, case: Case) -> None:
        if not self.has_hadard(case):
            return
        is_killed = case.fault.kind is Kind.STOP_AND_KILL
        lasts_s = case.fault.absence_s
        self.keeper.send(signal.SIGSTOP)
        self.keeper.is_stopped = True
        self.observer.gone_since_s = self.observer.gone_since_s or time.time()
        case.done = f"SIGSTOP for {lasts_s:.1f} s"
        pid = self.keeper.pid

        def go_on() -> None:
            self.keeper.is_stopped = False
            if self.keeper.pid == pid:
                if is_killed:
                    self.keeper.expect(case.fault.restart_s, has_stop_post=False)
                self.keeper.send(signal.SIGKILL if is_killed else signal.SIGCONT)
                if not is_killed and self.keeper.is_alive:
                    # hadard runs again, although its current step may take long.
                    self.observer.gone_since_s = None

        self.later(case, go_on, lasts_s)

    def _reload(self, case: Case) -> None:
        if self.is_configuration_other:
            return self.skip(case, "the configuration is another already")
        change = _CHANGES[int(case.fault.pick * len(_CHANGES))]
        case.done = ", ".join(f"{key}: {value}" for key, value in change.items()) + ", and back"
        self._configure(self.world.config(**change), is_other=True)
        self.later(case, lambda: self._configure(self.world.config(), is_other=False))

    def _reload_broken(self, case: Case) -> None:
        if self.is_configuration_other:
            return self.skip(case, "the configuration is another already")
        text = _BROKEN[int(case.fault.pick * len(_BROKEN))]
        case.done = f"SIGHUP with {text.strip()!r}, and right again"
        pid, was_alive = self.keeper.pid, self.keeper.is_alive
        self._configure(self.world.config() + text if text else "nonsense", is_other=True)
        self.later(case, lambda: self._configure(self.world.config(), is_other=False))
        case.is_well = lambda: not was_alive or self.keeper.is_alive or self.keeper.pid != pid

    def _configure(self, text: str, *, is_other: bool) -> None:
        self.is_configuration_other = is_other
        self.world.configure(text)
        self.keeper.send(signal.SIGHUP)

    def _disable(self, case: Case) -> None:
        case.done = f"disable file for {case.fault.lasts_s:.1f} s"
        self.world.switch(is_off=True)
        self.later(case, lambda: self.world.switch(is_off=False))

    # Slurm.

    def _controller(self, case: Case) -> None:
        if self.is_controller_away or self.has_failed_over:
            return self.skip(case, "slurmctld is away already")
        is_short = case.fault.kind is Kind.CONTROLLER_RESTART
        away_s = case.fault.lasts_s * (0.1 if is_short else 0.8)
        case.done = f"for {away_s:.1f} s"
        self.is_controller_away = True
        self.world.stop_controller()
        self.later(case, self._start_controller, away_s)
        case.is_well = lambda: self.are_nodes_up()

    def _start_controller(self) -> None:
        self.world.start_controller()
        self.is_controller_away = False

    def restart_controller(self) -> None:
        """Restart slurmctld, as an operator would to recover lost GPUs."""
        self.world.stop_controller()
        self._start_controller()

    def are_nodes_up(self) -> bool:
        """Return whether all nodes are up that no fault has taken out."""
        bad = ("DOWN", "UNREPORTED", "UNKNOWN", "DRAIN", "NOT_RESPONDING", "*")
        return all(
            name in self.out or not any(word in state for word in bad)
            for name, state in self.observer.nodes.items()
        )

    def node_to_take(self, case: Case) -> str | None:
        """Choose a node; at most two are taken out at a time."""
        there = [name for name in self.world.nodes if name not in self.out]
        if len(self.out) >= 2:
            self.skip(case, "two nodes are away already")
            return None
        return there[int(case.fault.pick * len(there))]

    def _node(self, case: Case) -> None:
        name = self.node_to_take(case)
        if name is None:
            return
        self.out.add(name)
        kind = case.fault.kind
        case.done = f"{name} for {case.fault.lasts_s:.1f} s"
        self.world.take_node(kind, name)

        def bring_back() -> None:
            self.out.discard(name)
            self.world.return_node(kind, name)

        self.later(case, bring_back)
        case.is_well = lambda: self.are_nodes_up()

    def _drain(self, case: Case) -> None:
        name = self.node_to_take(case)
        if name is None:
            return
        self.out.add(name)
        case.done = f"{name} for {case.fault.lasts_s:.1f} s"
        self.say(case, ["scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=chaos"])

        def resume() -> None:
            self.out.discard(name)
            self.wait(lambda: self.order(["update", f"NodeName={name}", "State=RESUME"]), 30)

        self.later(case, resume)
        case.is_well = lambda: self.are_nodes_up()

    def order(self, words: Sequence[str]) -> bool:
        return self.world.run(["scontrol", *words], limit_s=10).status == 0

    def say(self, case: Case, argv: Sequence[str], user: str = "") -> Ran:
        done = self.world.run(argv, user=user, limit_s=15)
        if done.status != 0:
            words = (done.err or done.out).strip().splitlines() or ["no answer"]
            case.done += f" (refused: {words[-1][:60]})"
        return done

    # Disks, commands, clock.

    def _fill(self, case: Case) -> None:
        disk = case.fault.kind.rpartition(": ")[2].removesuffix("_dir")
        if disk in self.full:
            return self.skip(case, "it is full already")
        self.full.add(disk)
        self.world.fill(disk)
        case.done = f"for {case.fault.lasts_s:.1f} s"

        def make_room() -> None:
            self.full.discard(disk)
            self.world.make_room(disk)

        self.later(case, make_room)

    def _ordered(self, case: Case, order: Order) -> None:
        """Give an order and wait until it is carried out."""
        if not self.has_hadard(case):
            return
        control = self.world.control
        control.give(order)
        is_done = self.wait(lambda: control.fired() is not None, _STEP_LIMIT_S)
        control.withdraw()
        fired = control.fired()
        if not is_done or fired is None:
            return self.skip(case, f"{order.step} did not come within {_STEP_LIMIT_S:g} s")
        case.begun_s = fired["time_s"]
        case.done = f"{order.do} at {order.step}"
        if "made" in fired:
            case.done += f", {fired['made']} of {fired['of']} changes made"
        if order.do == "hang":
            self.observer.gone_since_s = self.observer.gone_since_s or fired["time_s"]
        if order.lasts_s:
            case.done += f", {order.lasts_s:.1f} s"
            self.later(case, lambda: None, order.lasts_s)

    def _lie(self, case: Case) -> None:
        fault = case.fault
        is_lie = fault.kind is Kind.LIE
        do, lasts_s = ("lie", 0.0) if is_lie else ("time out", 4.0)
        self._ordered(case, Order(do, fault.step, "instead", 0, fault.share, lasts_s))

    def _blind(self, case: Case) -> None:
        self._ordered(case, Order("blind", "look", "instead", lasts_s=case.fault.lasts_s))

    def _hang(self, case: Case) -> None:
        self._ordered(case, Order("hang", "plan", "instead", lasts_s=case.fault.absence_s))

    def _clock(self, case: Case) -> None:
        control = self.world.control
        # A clock that is hours wrong already is set right instead.
        offset_s = control.clock()
        jump_s = -offset_s if abs(offset_s) > 4 * 3600 else case.fault.jump_s
        control.set_clock(offset_s + jump_s)
        case.done = f"by {jump_s / 60:+.0f} min, now wrong by {control.clock() / 60:+.0f} min"
