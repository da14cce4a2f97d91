"""One run of Sia's simulator: its own program, with one of its schedulers or of our policies.

For our policies, `GavelPolicy` of the simulator is replaced by a subclass that asks our policy; so
its jobs are rigid, and it sees what Gavel sees. They have the batch size of the workload, or with
`-tuned` after the policy's name tune it as those of Sia do (`batch_sizes.py`).

Three of the simulator's functions take most of its time, and get short cuts that change no figure.
It keeps the largest batch size of a placement, the batch size of a GPU until the placement changes
if it is not tuned, and the models of throughput that it fits. Where batch sizes are fixed, neither
Gavel nor our policies read these models, and none are fitted.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any

from batch_sizes import keeping_batches, tuning_batches, useful_speed
from translation import Held, JobInfo, Speed, Translation

import hadar_slurm
from hadar_slurm.policies.registry import make_policy

SIMULATOR = "sia-simulator"
LIBRARIES = ("numpy", "pandas", "scipy", "cvxpy", "cvxopt", "ecos")

# The options of run_experiment.sh and, for sia_fix, those in the first line of sia_fix.py.
_GAVEL = ("--policy=gavel",)
_SIA = ("--policy=sia", "--policy_p_val=-0.5", "--mip_lambda_a=0.01", "--mip_lambda_n=1.1")
_SIA_FIX = ("--policy=sia_fix", "--policy_p_val=0.5", "--mip_lambda_a=-0.02", "--mip_lambda_n=-0.5")
_SHARED = ("--project_throughputs", "--share_max_replicas")


@dataclass(frozen=True, slots=True)
class Theirs:
    """A scheduler of the artifact: its options, and what is fixed in its jobs beyond them."""

    options: tuple[str, ...]
    # Jobs keep the batch size of the workload; sia_fix itself tunes it.
    keeps_batch: bool = False
    # It decides by integer programs, over models of throughput.
    solves_integers: bool = False


# After the name of one of our policies: its jobs tune their batch sizes, and it sees the goodput of
# all epochs left, or that of the present one only.
TUNED, TUNED_NOW = "-tuned", "-tuned-now"
THEIRS = {
    "gavel": Theirs(_GAVEL),
    "sia_fix": Theirs((*_SIA_FIX, *_SHARED), solves_integers=True),
    "sia_fix-batch": Theirs((*_SIA_FIX, *_SHARED), solves_integers=True, keeps_batch=True),
    "sia": Theirs((*_SIA, *_SHARED), solves_integers=True),
}
# sia's programs have this gap in the artifact too (sia_solver_thresh); sia_fix's have none there.
GAP = 1e-4
# Of one program; HiGHS's best solution so far is taken then.
SOLVE_LIMIT_S = 60.0


def play(artifact: Path, workload: str, scheduler: str, interval_s: int) -> dict[str, Any]:
    """Run the simulator in this process, and return the record of the run.

    `artifact` is a checkout of github.com/siasosp23/artifacts, `workload` as `saturn-1`, and
    `scheduler` one of `THEIRS` or the name of one of our policies, alone or with `TUNED` or
    `TUNED_NOW`.
    """
    simulator = (artifact / SIMULATOR).resolve()
    theirs = THEIRS.get(scheduler)
    begun_s = time.process_time()
    with tempfile.TemporaryDirectory() as directory, inside(simulator):
        log = Path(directory, "log")
        family, number = workload.rsplit("-", 1)
        jobs = Path("workloads", family, f"workload-{number}.csv")
        words = [str(jobs), *(theirs.options if theirs else _GAVEL)]
        words += [f"--interval={interval_s}", f"--output={log}"]
        with _changed(scheduler):
            _run_program(simulator / "multi_simulator.py", words)
        with log.open(encoding="utf-8") as lines:
            *_, last = lines
    return {
        "workload": workload,
        "scheduler": scheduler,
        "interval_s": interval_s,
        **figures(json.loads(last)["submitted_jobs"]),
        "cpu_s": round(time.process_time() - begun_s, 1),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
    }


def figures(jobs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and p99 of completion times, makespan in s, and restarts, as the artifact does.

    Its utils/print_run_stats.py: the makespan is from the first submission to the last end; the
    first start of a job is no restart.
    """
    times_s = sorted(job["completion_time"] - job["submission_time"] for job in jobs)
    first_s = min(job["submission_time"] for job in jobs)
    return {
        "jobs": len(jobs),
        "mean_jct_s": mean(times_s),
        "p99_jct_s": times_s[int(0.99 * len(times_s))],
        "makespan_s": max(job["completion_time"] for job in jobs) - first_s,
        "restarts": sum(job["num_restarts"] for job in jobs),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, of its libraries and of this project."""
    ours = {"python": platform.python_version(), "hadar_slurm": hadar_slurm.__version__}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            ours[name] = version(name)
    return ours


@contextlib.contextmanager
def _changed(scheduler: str) -> Iterator[None]:
    """Change the simulator's modules for a run, and change them back."""
    import applications  # these three are the simulator's
    import cluster
    import gavel
    import job

    theirs, is_tuned = THEIRS.get(scheduler), scheduler.endswith((TUNED, TUNED_NOW))
    application = applications.Application
    changes: list[tuple[Any, str, Any]] = [
        (application, "get_max_local_bsz", _kept(application.get_max_local_bsz)),
        (job.Job, "update_local_bsz", _when_changed(job.Job.update_local_bsz)),
    ]
    if theirs is None:
        speed = rigid_speed
        if is_tuned:
            import goodput  # the simulator's

            foresees = scheduler.endswith(TUNED)
            speed = useful_speed(goodput.GoodputFunction, foresees=foresees)
            changes.append((cluster, "Cluster", tuning_batches(cluster.Cluster)))
        name = scheduler.removesuffix(TUNED_NOW).removesuffix(TUNED)
        changes.append((gavel, "GavelPolicy", _ours(gavel.GavelPolicy, name, speed)))
    elif theirs.keeps_batch:
        changes.append((cluster, "Cluster", keeping_batches(cluster.Cluster)))
    if theirs is not None and theirs.solves_integers:
        import cvxpy  # the simulator's solver of programs

        changes.append((cvxpy, "Problem", _by_highs(cvxpy)))
    if is_tuned or (theirs is not None and theirs.solves_integers):
        changes.append((job, "fit_perf_params", _kept_fit(job.fit_perf_params)))
    else:
        changes.append((job, "fit_perf_params", _no_fit))
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for change in before:
            setattr(*change)


def _ours(gavel_policy: Any, name: str, speed: Speed) -> type:
    """Return a subclass of the simulator's `GavelPolicy` that asks our policy `name`."""

    class Ours(gavel_policy):  # type: ignore[misc]
        """Our policy in the place of Gavel."""

        def __init__(self, interval: float, policy: str = "") -> None:
            self._round_s = interval

        def populate_valid_configs(
            self,
            num_nodes: Mapping[str, int],
            gpus_per_node: Mapping[str, int],
            most_nodes: Mapping[str, int] | None = None,
        ) -> None:
            self._translation = Translation(
                make_policy(name), num_nodes, gpus_per_node, self._round_s, speed
            )

        def optimize(
            self, jobs: Mapping[str, JobInfo], nodes: object, held: Mapping[str, Held]
        ) -> dict[str, tuple[str, list[int]]]:
            return self._translation.decide(jobs, held)

    return Ours


def rigid_speed(info: Any, gpu_type: str, placement: tuple[int, ...]) -> float:
    """Return the steps/s of a job with these numbers of GPUs by node, from measured step times."""
    batch = info.target_batch_size
    samples_per_s = info.applications[gpu_type].get_throughput_with_accum(placement, batch)
    return max(0.0, float(samples_per_s) / batch * info.slowdown_factor)


def _kept(get_max_local_bsz: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of the simulator's applications with its answers kept."""
    kept = lru_cache(maxsize=None)(get_max_local_bsz)
    return lambda self, placement: kept(self, tuple(placement))


def _when_changed(update_local_bsz: Callable[..., None]) -> Callable[..., None]:
    """Return the method of the simulator's jobs that sets the batch size of a GPU.

    The simulator calls it after every epoch. Where batch sizes are not tuned, it depends on GPU
    type and placement only.
    """

    def update(self: Any, placement: Any) -> None:
        now = (self.current_cluster, tuple(placement))
        if self.enable_bsz_tuning or self.atomic_bsz == 0 or self.__dict__.get("_set_for") != now:
            update_local_bsz(self, placement)
            self._set_for = now

    return update


def _kept_fit(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fit of a model of throughput with its answers kept, by the arrays it is given."""
    kept: dict[tuple[bytes, ...], Any] = {}

    def find(*arrays: Any) -> Any:
        key = tuple(array.tobytes() for array in arrays)
        if key not in kept:
            kept[key] = fit(*arrays)
        return kept[key]

    return find


def _by_highs(cvxpy: Any) -> type:
    """Return a subclass of `cvxpy.Problem` that HiGHS solves, whatever solver is asked for.

    GLPK takes up to a minute for a round of sia_fix with 50 jobs; sia itself asks for CBC.
    """

    class ByHighs(cvxpy.Problem):  # type: ignore[misc]
        """An integer program for HiGHS."""

        def solve(self, *_: object, **__: object) -> Any:
            limits = {"mip_rel_gap": GAP, "time_limit": SOLVE_LIMIT_S}
            return super().solve(solver=cvxpy.SCIPY, scipy_options=limits)

    return ByHighs


def _no_fit(*_: object) -> None:
    """Fit no model of throughput."""


@contextlib.contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Work in `directory`, and import modules from it first."""
    before = Path.cwd()
    os.chdir(directory)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Drop what is printed, and warnings."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nothing,
        contextlib.redirect_stdout(nothing),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _run_program(path: Path, words: list[str]) -> None:
    """Run a Python program in this process, without what it prints."""
    sys.argv = [path.name, *words]
    with silent():
        runpy.run_path(str(path), run_name="__main__")
