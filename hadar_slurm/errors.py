"""Every exception the project raises on purpose, and whose fault each one is.

HadarError
├── UsageError              the caller's words are wrong; commands exit with status 2
│   ├── ConfigError             a configuration, cluster or table file
│   ├── JobSpecError            the description of a job
│   ├── PolicyError             a policy whose package cannot be imported
│   └── TraceError              a workload trace
├── InvalidPlan             our fault: a policy proposed what cannot be
├── PhaseError              our fault: a job moved between phases that do not follow
├── SolverError             no usable answer from the solver
│   └── SolverTimeout           none within its time limit
├── DaemonError             another hadard is at work on the cluster
├── LedgerError             what hadard is about to do to jobs cannot be written down
├── SbatchNotFound          there is no sbatch to execute but hadar-sbatch itself
├── ClusterError            a local cluster could not be started, found or stopped
└── SlurmError
    ├── SlurmUnavailable        Slurm did not answer; try again next round
    ├── SlurmRefused            Slurm said no to this one action
    └── SlurmOutputError        Slurm answered in a form we do not know; attaches the text
"""

from __future__ import annotations

from collections.abc import Iterable


class HadarError(Exception):
    """Any failure the project names."""


class UsageError(HadarError):
    """The caller asked for something that cannot be: names the value and what is accepted."""


class ConfigError(UsageError):
    """A configuration, cluster or table file is wrong."""


class JobSpecError(UsageError):
    """The description of a job is wrong."""


class PolicyError(UsageError):
    """A policy's package cannot be imported."""


class TraceError(UsageError):
    """A workload trace is wrong: names file, line and value."""


class InvalidPlan(HadarError):
    """A plan breaks rules; `broken` lists every one of them."""

    def __init__(self, broken: Iterable[str]) -> None:
        self.broken = tuple(broken)
        super().__init__("invalid plan: " + "; ".join(self.broken))


class PhaseError(HadarError):
    """A job moved between phases that do not follow each other."""


class SolverError(HadarError):
    """The solver gave no usable answer."""


class SolverTimeout(SolverError):
    """The solver found nothing within its time limit."""


class DaemonError(HadarError):
    """Another hadard is at work on the same cluster."""


class LedgerError(HadarError):
    """What hadard is about to do to jobs cannot be written down, so it must not be done."""


class SbatchNotFound(HadarError):
    """There is no sbatch to execute: says why, and how to name one."""


class ClusterError(HadarError):
    """A local cluster could not be started, found or stopped."""


class SlurmError(HadarError):
    """Something between Slurm and us went wrong."""


class SlurmUnavailable(SlurmError):
    """Slurm did not answer in time; the next round tries again."""


class SlurmRefused(SlurmError):
    """Slurm refused one command; other commands are not affected."""


class SlurmOutputError(SlurmError):
    """Slurm's answer has a form we do not know; `text` holds it."""

    def __init__(self, message: str, text: str) -> None:
        self.text = text
        super().__init__(f"{message}: {text[:300]!r}")
