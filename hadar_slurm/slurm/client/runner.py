"""Runs one command as an argument vector, with a time limit and without a shell.

The limit is needed: without slurmctld, Slurm's commands hang for MessageTimeout (29 s measured).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.errors import SlurmError, SlurmRefused, SlurmUnavailable

# Messages of Slurm's tools without a connection to the controller, 22.05 to 26.05.
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Connection timed out",
    "Zero Bytes were transmitted or received",
    "Socket timed out on send/recv operation",
    "Slurm backup controller in standby mode",
    "Unexpected message received",
    # Its name could not be looked up.
    "Unable to establish control machine address",
)

_COLOURS = re.compile("^(?:\x1b(?:\\[[0-?]*[ -/]*[@-~]|[()]\\w)|\x0f)+", re.MULTILINE)
# The outcomes of a command.
DONE, REFUSED, UNAVAILABLE = "done", "refused", "unavailable"


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs Slurm's command-line tools against one cluster.

    The environment is set so that times print as seconds since the epoch and messages in English.
    """

    # None: the site's own configuration.
    slurm_conf: Path | None = None
    timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)
    # Called before each command.
    on_run: Callable[[], None] = lambda: None
    # Called after each command with the program's name and the outcome: `done`, `refused` (another
    # status than 0) or `unavailable`.
    on_answer: Callable[[str, str], None] = lambda program, answer: None
    # The account that the commands run as.
    uid: int = field(default_factory=lambda: os.geteuid())
    # What each program says on its error stream though nothing is wrong, by line.
    _warnings: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)

    def variables(self) -> dict[str, str]:
        """Return the environment that commands run with, without its user's defaults for them."""
        defaults = ("SQUEUE_", "SINFO_", "SLURM_CLUSTERS")
        chosen = {k: v for k, v in os.environ.items() if not k.startswith(defaults)}
        conf = {} if self.slurm_conf is None else {"SLURM_CONF": str(self.slurm_conf)}
        return chosen | conf | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", **self.environment}

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        """Return the output of `argv`.

        Raises SlurmUnavailable when the command is missing, too slow or cannot reach slurmctld,
        and SlurmRefused when it ends with another status than 0.
        """
        done = self._done(argv, stdin)
        words = self._faults(argv[0], done.stderr)
        # A wrapper of the command may lose its status.
        if done.returncode == 0 and not ("slurm_load" in words and is_unreachable(words)):
            known = self._warnings.setdefault(argv[0], set())
            known.update(done.stderr.splitlines()[: max(0, 200 - len(known))])
            return done.stdout
        words = words or "; ".join(done.stdout.split("\n")).strip("; ")
        raise fault_of(f"{' '.join(argv)}: status {done.returncode}: {words}", words)

    def complaints(self, argv: Sequence[str], *, stdin: str) -> str:
        """Return the error stream, at any status; raises SlurmUnavailable if missing or slow."""
        return self._done(argv, stdin).stderr

    def replies(self, argv: Sequence[str], *, stdin: str) -> str:
        """Return the output, at any status; raises SlurmUnavailable as `run` does."""
        done = self._done(argv, stdin)
        words = self._faults(argv[0], done.stderr)
        if is_unreachable(words):
            raise SlurmUnavailable(f"{' '.join(argv)}: {words}")
        return done.stdout

    def _faults(self, program: str, said: str) -> str:
        """Return the text of an error stream without the lines that the program always has."""
        known = self._warnings.get(program, ())
        return "; ".join(line for line in said.splitlines() if line.strip() and line not in known)

    def _done(self, argv: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
        self.on_run()
        answer = UNAVAILABLE
        try:
            done = subprocess.run(
                argv,
                input=stdin.encode(),
                capture_output=True,
                timeout=self.timeout_s,
                env=self.variables(),
                check=False,
                # Keeps a Control-C at the terminal from the command: a half-made change would leave
                # a job without GPUs in its request.
                process_group=0,
            )
            if done.returncode == 0 or not is_unreachable(_text(done.stderr or done.stdout)):
                answer = REFUSED if done.returncode else DONE
        except FileNotFoundError as error:
            raise SlurmUnavailable(f"{argv[0]} is not installed or not on PATH") from error
        except subprocess.TimeoutExpired as error:
            text = f"{argv[0]} gave no answer within {self.timeout_s:g} s"
            raise SlurmUnavailable(text) from error
        finally:
            self.on_answer(argv[0], answer)
        return subprocess.CompletedProcess(
            done.args, done.returncode, _text(done.stdout), _text(done.stderr)
        )


def _text(output: bytes) -> str:
    """Return the decoded output, with the line breaks of users unchanged."""
    # A wrapper may set back a terminal's colours just before the first line of a command.
    return re.sub(_COLOURS, "", output.decode(errors="replace"))


def is_unreachable(words: str) -> bool:
    """Return whether a message of Slurm's tools means that slurmctld was not reached."""
    return any(sign in words for sign in _UNREACHABLE)


def fault_of(message: str, words: str) -> SlurmError:
    """Return the error with this message for what Slurm's tools said."""
    return SlurmUnavailable(message) if is_unreachable(words) else SlurmRefused(message)
