"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly.

Modules that only managed jobs need are imported late: they take longer than all else here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from hadar_slurm.errors import HadarError, SbatchNotFound, UsageError
from hadar_slurm.submit.call import call_for
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.execute import become, user_environment
from hadar_slurm.submit.real_sbatch import RealSbatch, find_sbatch, is_second_call
from hadar_slurm.submit.request import (
    DRY_RUN,
    HELP,
    JSON,
    USAGE,
    SbatchRequest,
    parse_words,
    with_script,
)
from hadar_slurm.submit.script import is_read_once, read_script

# Options with which sbatch prints something and submits nothing.
_QUESTIONS = frozenset(("help", "usage", "version"))


def main(words: Sequence[str] | None = None) -> int:
    """Submit a job; executes sbatch in its place, so output and exit status are sbatch's."""
    words = sys.argv[1:] if words is None else words
    # An interrupt while it reads a script from a terminal ends it as it ends sbatch.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _answer(parse_words(words, os.environ))
    except (UsageError, SbatchNotFound) as error:
        _print_notes(str(error))
        # sbatch itself exits with 1 on a usage error; 2 is the convention, and 127 a shell's.
        return 2 if isinstance(error, UsageError) else 127


def _answer(request: SbatchRequest) -> int:
    is_passed_on = is_second_call(os.environ)
    # Under the name sbatch, --help is sbatch's.
    is_sbatch = os.path.basename(sys.argv[0]) == "sbatch"
    asks_for_help = HELP in request.flags or ("help" in request.values and not is_sbatch)
    if asks_for_help and not is_passed_on:
        print(USAGE)
        return 0
    if "version" in request.values and not (is_sbatch or is_passed_on):
        from hadar_slurm.built_from import version

        _print_notes(f"hadar_slurm {version()}")
    if is_passed_on or _QUESTIONS & request.values.keys():
        become(find_sbatch(os.environ, sys.argv[0]), request.plain_call, user_environment())
    return _submit(with_script(request, read_script))


def _submit(request: SbatchRequest) -> int:
    """Print the call for a dry run, else execute it; run it if its answer is needed here."""
    is_json = JSON in request.flags
    sbatch = None if DRY_RUN in request.flags else find_sbatch(os.environ, sys.argv[0])
    call, environment = _call(request, sbatch)
    if sbatch is None:
        _print_line(request, call, *call.notes)
        _print_call(call, is_json=is_json)
        return 0
    is_refused = call.is_held and _is_refused(request, sbatch, call, environment)
    if is_refused and {"wait", "quiet"} & request.values.keys():
        # sbatch returns when the job has ended, or prints no job id: it could not be held.
        call, environment = _call(request, sbatch, "Slurm cannot start it now")
        is_refused = False
    if not (is_json or is_refused):
        _print_line(request, call)
        become(sbatch, call.argv, environment)
    from hadar_slurm.submit.trial import submit

    status, answer, call = submit(sbatch, call, environment, is_refused=is_refused)
    words = answer.split()
    if is_json and (words or status == 0):
        _print_call(call, words[-1] if words else "", is_json=True)
    elif not is_json:
        if status == 0:
            _print_line(request, call)
        _print(answer)
    return status


def _call(
    request: SbatchRequest, sbatch: RealSbatch | None, unserved: str = ""
) -> tuple[Call, dict[str, str]]:
    """Return the call and its environment; where it cannot be made, execute the user's own."""
    is_json, environment = JSON in request.flags, user_environment()
    try:
        call = call_for(request, environment, is_parsable=is_json, unserved=unserved)
    except Exception as error:
        if sbatch is None or is_json or isinstance(error, HadarError):
            raise
        # A failure must not stop a submission.
        _print_notes(f"failed, so plain Slurm places this job: {error!r}")
        become(sbatch, request.plain_call, environment)
    return call, {**environment, **call.variables}


def _is_refused(
    request: SbatchRequest, sbatch: RealSbatch, call: Call, environment: Mapping[str, str]
) -> bool:
    """Return whether Slurm would not start the job if it was free to, by a trial of sbatch."""
    if is_read_once(request.script_name, request.values.get("chdir", "")):
        return False
    from hadar_slurm.submit.trial import is_refused

    is_piped = request.script_name == ""
    return is_refused(sbatch, call.unheld, environment, is_piped=is_piped)


def _print_call(call: Call, answer: str = "", *, is_json: bool) -> None:
    """Print the call and a preview for people, or both and sbatch's answer as JSON."""
    from hadar_slurm.submit.preview import as_json, as_text

    job, _, cluster = answer.partition(";")
    _print((as_json(call, job or None, cluster or None) if is_json else as_text(call)) + "\n")


def _print(text: str) -> None:
    """Print a text that the user's locale may not be able to encode."""
    sys.stdout.buffer.write(os.fsencode(text))


def _print_line(request: SbatchRequest, call: Call, *notes: str) -> None:
    """Print the decision and these notes, unless the user, the site or the output forbids it."""
    is_quiet = os.environ.get("HADAR_QUIET", "") not in ("", "0") or JSON in request.flags
    if not (is_quiet or {"quiet", "parsable"} & request.values.keys()):
        _print_notes(call.decision.line, *notes)


def _print_notes(*notes: str) -> None:
    """Print each note on a line; a failure to print does not stop the submission."""
    if sys.stderr is None:
        return
    for note in notes:
        text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in note)
        try:
            print(f"hadar-sbatch: {text}", file=sys.stderr)
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main())
