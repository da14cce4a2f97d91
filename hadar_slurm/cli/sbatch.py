"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly.

Modules that only managed jobs need are imported late: they take longer than all else here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from hadar_slurm.errors import HadarError, SbatchNotFound, UsageError
from hadar_slurm.submit.decision import Decision, why_left_here
from hadar_slurm.submit.execute import become, run, user_environment
from hadar_slurm.submit.real_sbatch import find_sbatch, is_second_call
from hadar_slurm.submit.request import (
    DRY_RUN,
    HELP,
    JSON,
    USAGE,
    SbatchRequest,
    parse_words,
    with_script,
    without_hadar,
)
from hadar_slurm.submit.script import read_script

# sbatch itself exits with 1 on a usage error; 2 is the convention.
_USAGE_STATUS = 2
_NO_COMMAND_STATUS = 127
_QUIET_VARIABLE = "HADAR_QUIET"
# Options with which sbatch prints something and submits nothing.
_QUESTIONS = ("help", "usage", "version")


def main(words: Sequence[str] | None = None) -> int:
    """Submit a job; executes sbatch in its place, so output and exit status are sbatch's."""
    words = sys.argv[1:] if words is None else words
    # An interrupt while it reads a script from a terminal ends it as it ends sbatch.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _answer(parse_words(words, os.environ))
    except UsageError as error:
        _tell(str(error))
        return _USAGE_STATUS
    except SbatchNotFound as error:
        _tell(str(error))
        return _NO_COMMAND_STATUS


def _answer(request: SbatchRequest) -> int:
    is_passed_on = is_second_call(os.environ)
    if not is_passed_on and _asks_for_help(request):
        print(USAGE)
        return 0
    if is_passed_on or request.given(*_QUESTIONS):
        environment = user_environment()
        become(find_sbatch(os.environ, sys.argv[0]), without_hadar(request), environment)
    request = _read(request)
    return _dry_run(request) if DRY_RUN in request.flags else _submit(request)


def _asks_for_help(request: SbatchRequest) -> bool:
    """Return whether to print the usage; under the name sbatch, --help is sbatch's."""
    is_sbatch = os.path.basename(sys.argv[0]) == "sbatch"
    return HELP in request.flags or (request.given("help") and not is_sbatch)


def _read(request: SbatchRequest) -> SbatchRequest:
    name = request.script_name
    if name is None:
        return request
    return with_script(request, read_script(name, request.last("chdir") or ""))


def _dry_run(request: SbatchRequest) -> int:
    from hadar_slurm.submit.call import call_for, load_estimator
    from hadar_slurm.submit.preview import as_json, as_text

    is_json = JSON in request.flags
    call = call_for(request, user_environment(), is_parsable=is_json)
    _tell_user(request, call.decision.line, *call.notes)
    _print((as_json if is_json else as_text)(call, load_estimator()))
    return 0


def _submit(request: SbatchRequest) -> int:
    environment = user_environment()
    sbatch = find_sbatch(os.environ, sys.argv[0])
    if JSON not in request.flags:
        argv, variables = _planned(request, environment)
        become(sbatch, argv, {**environment, **variables})
    from hadar_slurm.submit.call import call_for, load_estimator
    from hadar_slurm.submit.preview import as_json

    call = call_for(request, environment, is_parsable=True)
    status, answer = run(sbatch, call.argv, {**environment, **call.variables})
    if answer or status == 0:
        job, _, cluster = answer.partition(";")
        _print(as_json(call, load_estimator(), job or None, cluster or None))
    return status


def _planned(
    request: SbatchRequest, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the sbatch call and the variables to add; print whether hadard places the job.

    A failure here must not stop a submission: the job goes to plain Slurm.
    """
    try:
        why = why_left_here(request, environment)
        if not why:
            from hadar_slurm.submit.call import call_for

            call = call_for(request, environment)
            _tell_user(request, call.decision.line)
            return call.argv, call.variables
        _tell_user(request, Decision(False, why).line)
    except HadarError:
        raise
    except Exception as error:
        _tell(f"failed, so plain Slurm places this job: {error!r}")
    return without_hadar(request), {}


def _tell_user(request: SbatchRequest, *notes: str) -> None:
    """Print notes that are not errors, unless the user or the site silences them."""
    if JSON in request.flags or request.given("quiet", "parsable"):
        return
    if os.environ.get(_QUIET_VARIABLE, "") in ("", "0"):
        _tell(*notes)


def _tell(*notes: str) -> None:
    """Print each note on a line; a failure to print does not stop the submission."""
    if sys.stderr is None:
        return
    for note in notes:
        text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in note)
        try:
            print(f"hadar-sbatch: {text}", file=sys.stderr)
        except OSError:
            return


def _print(text: str) -> None:
    """Print text that the user's locale may not be able to encode."""
    sys.stdout.buffer.write(os.fsencode(text + "\n"))


if __name__ == "__main__":
    sys.exit(main())
