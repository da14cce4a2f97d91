"""Runs of a comparison as job arrays of the site's own Slurm, submitted through submitit.

Each run is a task of an array and writes its result as a process of this machine would, in the same
directory, which all nodes must see. `slurm/tasks.json` there names the tasks, so that the next
command waits for those that are still in Slurm and submits only the others. Submitit would ask
sacct how they end; this asks squeue, which works without accounting too.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hadar_slurm.errors import ConfigError, HadarError, SlurmError, SlurmRefused, SlurmUnavailable
from hadar_slurm.lab.study.compare import Cell, Record, run_cell
from hadar_slurm.lab.study.running.cells import Watcher, failed_record, interrupts
from hadar_slurm.lab.study.running.record_files import cell_path, read_record, write_record
from hadar_slurm.slurm.client.runner import Runner

# Tasks of an array; Slurm's own default allows one more.
_MOST_TASKS = 1000
# A file that a node has written may be seen this much later elsewhere.
_LATE_S = 60.0
# Longest delay after Ctrl-C.
_NAP_S = 0.2
_ENDED_LINES = 3
_PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_LIVE = (
    *_PENDING, "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING",
    "STAGE_OUT", "RESIZING",
)  # fmt: skip
_REMEDIES = {
    "TIMEOUT": "give it more time with --slurm-time",
    "DEADLINE": "give it more time with --slurm-time",
    "OUT_OF_MEMORY": "give it more memory with --slurm-memory",
    "CANCELLED": "repeat the command to run it again",
    "NODE_FAIL": "repeat the command to run it again",
    "PREEMPTED": "repeat the command, or give a --slurm-partition that is not preempted",
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What each run asks of Slurm."""

    # "" is Slurm's default.
    partition: str = ""
    time_limit_s: float = 4 * 3600.0
    # As sbatch takes it.
    memory: str = "4G"
    # Tasks of an array that run at once; None: all.
    at_once: int | None = None
    # Further options of sbatch, such as account, by name.
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Arrays:
    """Runs cells as tasks of job arrays; raises ConfigError or SlurmError with the remedy."""

    request: RunRequest = field(default_factory=RunRequest)
    runner: Runner = field(default_factory=Runner)
    poll_s: float = 5.0
    late_s: float = _LATE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(
        self, cells: Sequence[Cell], todo: Sequence[int], folder: Path, watcher: Watcher
    ) -> Iterator[tuple[int, Record]]:
        """Submit the cells `todo` that are not in Slurm yet, and yield each as it ends.

        Ctrl-C cancels all of their tasks. If this process is killed, they run on.
        """
        place = folder.resolve() / "slurm"
        place.mkdir(parents=True, exist_ok=True)
        book = _Book(place / "tasks.json")
        book.tidy(folder)
        if not todo:
            return
        of_key = {cells[index].key: index for index in todo}
        states = self._states({book.tasks[key] for key in of_key if key in book.tasks})
        known = {key for key in of_key if states.get(book.tasks.get(key, "")) in _LIVE}
        new = {key: cells[of_key[key]] for key in of_key if key not in known}
        with interrupts() as check:
            try:
                self._submit(new, folder.resolve(), book, check)
                waiting = set(of_key)
                missed: dict[str, float] = {}
                while waiting:
                    check()
                    asked = {book.tasks[key] for key in waiting}
                    states = self._states(asked) if waiting else {}
                    for key in sorted(waiting):
                        cell, task = cells[of_key[key]], book.tasks[key]
                        path, state = cell_path(folder, cell), states.get(task, "")
                        record = read_record(path)
                        if record is None and self._is_lost(key, state, missed):
                            record = failed_record(cell, _why(task, state, place))
                            write_record(path, record)
                        if record is not None:
                            waiting.discard(key)
                            book.tidy_task(task, record)
                            yield of_key[key], record
                    pending = sum(states.get(book.tasks[key]) in _PENDING for key in waiting)
                    watcher.in_slurm(pending, len(waiting) - pending)
                    self._nap(check, bool(waiting))
            except (KeyboardInterrupt, GeneratorExit):
                self._cancel({book.tasks[key] for key in of_key if key in book.tasks})
                raise

    def _is_lost(self, key: str, state: str, missed: dict[str, float]) -> bool:
        """Return whether a cell without a record has ended; `missed`: since when each has none."""
        if state in _LIVE:
            return False
        # Perhaps its file is not visible yet.
        late_s = 0.0 if state in _REMEDIES else self.late_s
        return self.clock() - missed.setdefault(key, self.clock()) >= late_s

    def _nap(self, check: Callable[[], None], is_waiting: bool) -> None:
        until_s = self.clock() + self.poll_s
        while is_waiting and self.clock() < until_s:
            check()
            self.sleep(min(_NAP_S, self.poll_s))

    def _submit(
        self, new: Mapping[str, Cell], folder: Path, book: _Book, check: Callable[[], None]
    ) -> None:
        keys, most = list(new), _MOST_TASKS
        if keys:
            most = min(most, self._largest_array())
        for begin in range(0, len(keys), most):
            check()
            chosen = keys[begin : begin + most]
            paths = [cell_path(folder, new[key]) for key in chosen]
            for path in paths:
                # That of a failed run, which would count as this one's.
                path.unlink(missing_ok=True)
            tasks = _submitted(self.request, folder / "slurm", [new[k] for k in chosen], paths)
            book.add(dict(zip(chosen, tasks, strict=True)))

    def _largest_array(self) -> int:
        """Return the most tasks of an array that Slurm allows."""
        for line in self.runner.run(["scontrol", "show", "config"]).splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "MaxArraySize" and value.strip().isdigit():
                if not int(value):
                    raise ConfigError(
                        "--on-slurm: this Slurm allows no job arrays (MaxArraySize is 0 in "
                        "slurm.conf); leave the option out, or ask its operators"
                    )
                return max(1, int(value) - 1)
        return _MOST_TASKS

    def _states(self, tasks: set[str]) -> dict[str, str]:
        """Return the states of those of these tasks that Slurm knows.

        If Slurm gives no answer, that is all of them, as running.
        """
        if not tasks:
            return {}
        jobs = ",".join(sorted({task.partition("_")[0] for task in tasks}))
        try:
            text = self.runner.run(["squeue", "-h", "-r", "-t", "all", "-o", "%i %T", "-j", jobs])
        except SlurmUnavailable:
            return dict.fromkeys(tasks, "RUNNING")
        except SlurmRefused as error:
            if "Invalid job id" not in str(error):
                raise
            return {}
        pairs = (line.split() for line in text.splitlines() if line.strip())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def _cancel(self, tasks: set[str]) -> None:
        if not tasks:
            return
        try:
            self.runner.run(["scancel", *sorted(tasks)])
        except SlurmError as error:
            # Those that have ended are refused; all others are cancelled.
            logging.getLogger(__name__).debug("%s", error)


class _Book:
    """The task of each cell, by its key, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tasks: dict[str, str] = {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(found, dict):
            self.tasks = {str(key): str(task) for key, task in found.items()}

    def add(self, tasks: Mapping[str, str]) -> None:
        """Add tasks, and write the file."""
        self.tasks |= tasks
        partial = self._path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps(self.tasks) + "\n", encoding="utf-8")
        os.replace(partial, self._path)

    def tidy(self, folder: Path) -> None:
        """Remove the files of tasks that have ended while no command waited for them."""
        for key, task in self.tasks.items():
            if (self._path.parent / f"{task}_submitted.pkl").exists():
                record = read_record(folder / "cells" / f"{key}.json")
                self.tidy_task(task, record or {})

    def tidy_task(self, task: str, record: Record) -> None:
        """Remove a task's files if it has a result; each run has one of each kind."""
        if record.get("status") == "done":
            for kind in ("submitted.pkl", "0_result.pkl", "0_log.out"):
                (self._path.parent / f"{task}_{kind}").unlink(missing_ok=True)


def _submitted(
    request: RunRequest, place: Path, cells: Sequence[Cell], paths: Sequence[Path]
) -> list[str]:
    """Submit an array, and return the ids of its tasks."""
    submitit = _library()
    at_once = min(request.at_once or len(cells), len(cells))
    others: dict[str, Any] = {"mem": request.memory, **request.others}
    chosen = {"partition": request.partition} if request.partition else {}
    try:
        executor = submitit.SlurmExecutor(folder=place)
        executor.update_parameters(
            job_name="hadar-compare",
            time=max(1, round(request.time_limit_s / 60)),
            cpus_per_task=1,
            array_parallelism=at_once,
            # A run has one process; solvers would start a thread for each processor of the node.
            setup=["export OMP_NUM_THREADS=1"],
            stderr_to_stdout=True,
            use_srun=False,
            additional_parameters=others,
            **chosen,
        )
        jobs = executor.map_array(run_task, cells, paths)
    except submitit.core.utils.FailedJobError as error:
        words = str(error).strip().replace("\n", "; ")
        raise SlurmRefused(
            f"--on-slurm: sbatch refused {len(cells)} runs: {words}; see --slurm-partition, "
            "--slurm-time, --slurm-memory and --slurm-options"
        ) from error
    except (RuntimeError, OSError) as error:
        raise SlurmUnavailable(
            f"--on-slurm: {error}; run this where sbatch works, such as on a login node"
        ) from error
    return [str(job.job_id) for job in jobs]


def _library() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(
            "--on-slurm needs submitit: pip install 'hadar_slurm[slurm-study]'"
        ) from error
    return submitit


def run_task(cell: Cell, path: Path) -> None:
    """Run one cell, and write its record (main function of a task)."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        _run_task(cell, path)
    finally:
        logging.disable(silenced)


def _run_task(cell: Cell, path: Path) -> None:
    if cell.key != path.stem:
        text = "the code or the solvers have changed since it was submitted; repeat the command"
        record = failed_record(cell, text) | {"key": path.stem}
    else:
        record = run_cell(cell)
    write_record(path, record)
    if record["status"] != "done":
        # For the log and Slurm's accounting.
        raise HadarError(str(record["error"]))


def _why(task: str, state: str, place: Path) -> str:
    """Return why a task left no result, and what to do."""
    log = place / f"{task}_0_log.out"
    remedy = _REMEDIES.get(state, "do the nodes see this directory, and this Python?")
    ended = f"ended as {state}" if state else "is no longer known to Slurm"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = " / ".join(lines[-_ENDED_LINES:])
    except OSError:
        words = "not there"
    return f"task {task} {ended} without a result: {remedy}; {log}: {words}"
