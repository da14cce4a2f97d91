"""The exceptions of the project."""

from __future__ import annotations

from collections.abc import Iterable


class HadarError(Exception):
    """Base class of the project's exceptions."""


class UsageError(HadarError):
    """The input is wrong: names the value and what is accepted; commands exit with status 2."""


class ConfigError(UsageError):
    """A configuration, cluster or table file is wrong."""


class JobSpecError(UsageError):
    """The description of a job is wrong."""


class PolicyError(UsageError):
    """A policy is not registered, or cannot be loaded or made."""


class InvalidPlan(HadarError):
    """Internal: a policy's plan breaks rules; `broken` lists every one of them.

    `jobs` are those that may be to blame.
    """

    def __init__(self, broken: Iterable[str], jobs: Iterable[str] = ()) -> None:
        self.broken, self.jobs = tuple(broken), frozenset(jobs)
        super().__init__("invalid plan: " + "; ".join(self.broken))


class SolverError(HadarError):
    """The solver gave no usable answer."""


class SolverTimeout(SolverError):
    """The solver found nothing within its time limit."""


class DaemonError(HadarError):
    """Another hadard runs on the same cluster."""


class LedgerError(HadarError):
    """The ledger cannot be written, so hadard must not change jobs."""


class ClusterError(HadarError):
    """A local cluster could not be started, found or stopped."""


class SlurmError(HadarError):
    """Base class of failures of Slurm's commands."""


class SlurmUnavailable(SlurmError):
    """Slurm did not answer in time; the next round tries again."""


class SlurmRefused(SlurmError):
    """Slurm refused one command; other commands are not affected."""


class SlurmOutputError(SlurmError):
    """Slurm's output has an unknown form; `text` holds it."""

    def __init__(self, message: str, text: str) -> None:
        self.text = text
        super().__init__(f"{message}: {text[:300]!r}")
