"""Runs scenarios and streams on two clusters at once, each play beside its plain twin."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from hadar_slurm.errors import HadarError, SlurmError
from hadar_slurm.lab.site.adoption import LIMIT_S, draw_stream, play_stream
from hadar_slurm.lab.site.play import Interrupted, NotReached, Played, SitePlay
from hadar_slurm.lab.site.results import (
    AdoptionRow,
    ScenarioRow,
    StreamPlayed,
    adoption_row,
    scenario_row,
)
from hadar_slurm.lab.site.scenarios import SiteScenario
from hadar_slurm.lab.site.testbed import SharedSite, shared_site

_NUM_SITES = 2
Task = Callable[[SharedSite], None]


@dataclass
class SiteRun:
    """What is to be measured, and the results so far; plays on several sites add to them."""

    way: str
    console: Console
    # Where hadard's logs and journals are kept.
    logs: Path
    stop: threading.Event = field(default_factory=threading.Event)
    # By scenario and group; a play each.
    plain: dict[tuple[str, str], list[Played]] = field(default_factory=dict)
    hadar: dict[tuple[str, str], list[Played]] = field(default_factory=dict)
    # By share and seed.
    streams: dict[int, dict[int, StreamPlayed]] = field(default_factory=dict)
    interval_s: float = 0.0

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def play_twins(self, scenario: SiteScenario, site: SharedSite) -> None:
        """Play a scenario plainly and with hadard, and add the results."""
        self.interval_s = site.interval_s
        for way, results in ((None, self.plain), (self.way, self.hadar)):
            for group, played in self._play(scenario, site, way).items():
                results.setdefault((scenario.name, group), []).append(played)
                wait = "not started" if played.wait_s is None else f"waited {played.wait_s:.1f} s"
                note = f" ({played.note})" if played.note else ""
                self.say(f"{scenario.row_name(group)}, {way or 'plain'}: {wait}{note}")

    def _play(self, scenario: SiteScenario, site: SharedSite, way: str | None) -> dict[str, Played]:
        play = SitePlay(
            site, way=way, name=scenario.name, stop=self.stop, say=self.say, logs=self.logs
        )
        with play.running():
            try:
                scenario.prepare(play)
                play.watch(scenario.limit_s, scenario.settle_s)
            except (NotReached, SlurmError) as error:
                return {group: Played(None, 0, 0.0, str(error)) for group in scenario.groups}
            return play.results(scenario.limit_s)

    def play_stream(self, percent: int, seed: int, site: SharedSite) -> None:
        """Play a stream with one share of jobs through hadar-sbatch, and add the result."""
        way = self.way if percent else None
        play = SitePlay(
            site, way=way, name=f"adoption-{percent}", stop=self.stop, say=self.say, logs=self.logs
        )
        with play.running():
            played = play_stream(play, draw_stream(seed), percent, seed)
        self.streams.setdefault(percent, {})[seed] = played
        took = played.note if played.ttd_s is None else f"TTD {played.ttd_s:.1f} s"
        self.say(f"adoption {percent} %: {took}")

    def scenario_rows(self, scenarios: Sequence[SiteScenario]) -> list[ScenarioRow]:
        """Return the results of the scenarios, in their order."""
        return [
            scenario_row(
                scenario.row_name(group),
                way=self.way,
                plain=self.plain.get((scenario.name, group), []),
                hadar=self.hadar.get((scenario.name, group), []),
                interval_s=self.interval_s,
            )
            for scenario in scenarios
            for group in scenario.groups
        ]

    def adoption_rows(self) -> list[AdoptionRow]:
        """Return the results of the streams by their share."""
        twins = self.streams.get(0, {})
        return [
            adoption_row(percent, runs, twins) for percent, runs in sorted(self.streams.items())
        ]


def tasks(
    run: SiteRun, scenarios: Sequence[SiteScenario], percents: Sequence[int], runs: int, seed: int
) -> list[Task]:
    """Return all plays, the longest first, so that both clusters end at about the same time."""
    found: list[tuple[float, Task]] = []
    for number in range(runs):
        found += [
            (LIMIT_S, partial(run.play_stream, percent, seed + number)) for percent in percents
        ]
        found += [(scenario.limit_s, partial(run.play_twins, scenario)) for scenario in scenarios]
    return [task for _, task in sorted(found, key=lambda pair: -pair[0])]


def run_tasks(run: SiteRun, scratch: Path, todo: Sequence[Task]) -> None:
    """Run the tasks on up to two clusters in `scratch`; on any exit, nothing is left running.

    The first failure ends the run and is raised. An interrupt or SIGTERM ends it likewise.
    """
    queue, failures = deque(todo), list[BaseException]()

    def work(site: SharedSite) -> None:
        try:
            while queue and not run.stop.is_set():
                queue.popleft()(site)
        except Interrupted:
            pass
        except BaseException as error:
            failures.append(error)
            run.stop.set()

    with _interrupts(), ExitStack() as at_end:
        at_end.callback(_ignore_interrupts)
        sites = []
        for number in range(min(_NUM_SITES, len(queue))):
            run.say(f"starting Slurm, cluster {number + 1}")
            sites.append(at_end.enter_context(shared_site(scratch / f"s{number + 1}")))
        threads = [threading.Thread(target=work, args=(site,)) for site in sites]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            _ignore_interrupts()
            run.stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
    if failures:
        first = failures[0]
        raise first if isinstance(first, HadarError) else HadarError(f"a play failed: {first!r}")


@contextmanager
def _interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C during a block, and restore the handlers of both afterwards."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_interrupts() -> None:
    """Let a further Ctrl-C not cut the stop of clusters short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
