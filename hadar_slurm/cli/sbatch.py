"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly.

What a job of Hadar's needs is imported when there is one: it takes longer than all else here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from hadar_slurm.errors import SbatchNotFound, UsageError
from hadar_slurm.submit.real_sbatch import TRIED_VARIABLE, find_sbatch, is_second_call
from hadar_slurm.submit.request import (
    DRY_RUN,
    HELP,
    JSON,
    NO_HADAR,
    USAGE,
    Request,
    parse_words,
    with_script,
    without_hadar,
)
from hadar_slurm.submit.script import read_script

# sbatch says the same on wrong usage with 1; ours is the field's usual 2.
_USAGE_STATUS = 2
_NO_COMMAND_STATUS = 127
# As in handoff.COPIES_VARIABLE, which takes longer to import.
_COPIES_VARIABLE = "HADAR_COPIES"


def main(words: Sequence[str] | None = None) -> int:
    """Submit a job; replaces itself by sbatch, so output and exit status are sbatch's."""
    words = sys.argv[1:] if words is None else words
    # Interrupted while it reads a script from a terminal, it ends as sbatch would.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        request = parse_words(words, os.environ)
        if is_second_call(os.environ):
            return _become(without_hadar(request), user_environment())
        if HELP in request.flags or (request.given("help") and not _is_called_sbatch()):
            print(USAGE)
            return 0
        if not request.given("help", "usage", "version"):
            request = _read(request)
        return _submit(request)
    except UsageError as error:
        _tell(str(error))
        return _USAGE_STATUS
    except SbatchNotFound as error:
        _tell(str(error))
        return _NO_COMMAND_STATUS


def _is_called_sbatch() -> bool:
    """Return whether a site has installed this in sbatch's place, so that its help is sbatch's."""
    return os.path.basename(sys.argv[0]) == "sbatch"


def _read(request: Request) -> Request:
    name = request.script_name
    if name is None:
        return request
    return with_script(request, read_script(name, request.last("chdir") or ""))


def _submit(request: Request) -> int:
    environment = user_environment()
    if not request.own and not request.flags and not request.leaves_type_open:
        return _become(without_hadar(request), environment)
    from hadar_slurm.submit.call import call_for, load_estimator
    from hadar_slurm.submit.preview import as_json, as_text

    call = call_for(request, environment, is_parsable=JSON in request.flags)
    is_ours = bool(request.own or call.description) and NO_HADAR not in request.flags
    if (is_ours or DRY_RUN in request.flags) and not request.given("quiet"):
        _tell(*call.notes)
    if DRY_RUN in request.flags:
        show = as_json if JSON in request.flags else as_text
        _print(show(call, load_estimator()))
        return 0
    environment.update(call.variables)
    if JSON not in request.flags:
        return _become(call.argv, environment)
    status, told = _run(call.argv, environment)
    if told or status == 0:
        job, _, cluster = told.partition(";")
        _print(as_json(call, load_estimator(), job or None, cluster or None))
    return status


def _become(argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Go on as sbatch; return only if it cannot be executed."""
    sbatch = find_sbatch(environment, sys.argv[0])
    # Python ignores these two, and what is ignored stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(sbatch.path, argv, _for_sbatch(environment, sbatch.variables))
    except OSError as error:
        return _cannot_run(sbatch.path, error)


def _run(argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run sbatch to its end, and return its status and the last line it printed."""
    import subprocess

    sbatch = find_sbatch(environment, sys.argv[0])
    try:
        done = subprocess.run(
            argv,
            executable=sbatch.path,
            env=_for_sbatch(environment, sbatch.variables),
            stdout=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        return _cannot_run(sbatch.path, error), ""
    lines = os.fsdecode(done.stdout).split()
    # A shell tells death by a signal like this.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return status, lines[-1] if lines else ""


def _for_sbatch(environment: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return sbatch's environment; what was tried to find it is not for the job."""
    kept = {name: text for name, text in environment.items() if name != TRIED_VARIABLE}
    return {**kept, **added}


def _cannot_run(path: str, error: OSError) -> int:
    _tell(f"cannot run {path}: {error.strerror}")
    return _NO_COMMAND_STATUS


def _tell(*notes: str) -> None:
    for note in notes:
        print(f"hadar-sbatch: {note}", file=sys.stderr)


def _print(text: str) -> None:
    """Print what may hold names that are no text in the user's locale."""
    sys.stdout.buffer.write(os.fsencode(text + "\n"))


def user_environment() -> dict[str, str]:
    """Return the environment as the user has it, which sbatch may pass on to the job."""
    environment = dict(os.environ)
    if not is_second_call(environment):
        # Submitted from within a copy, another job is none.
        environment.pop(_COPIES_VARIABLE, None)
    # Python changes this at its start where the locale is C (PEP 538).
    if "LC_CTYPE" in environment:
        _restore(environment, "LC_CTYPE")
    return environment


def _restore(environment: dict[str, str], name: str) -> None:
    """Give a variable the value that this process was started with, or take it away."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except OSError:
        return
    del environment[name]
    for pair in pairs:
        if pair.startswith(f"{name}="):
            environment[name] = pair.partition("=")[2]


if __name__ == "__main__":
    sys.exit(main())
