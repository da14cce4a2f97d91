"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly.

Modules that only managed jobs need are imported late: they take longer than all else here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.submit.call import call_for
from hadar_slurm.submit.decision import Call, Decision
from hadar_slurm.submit.execute import become, user_environment
from hadar_slurm.submit.own_options import DRY_RUN, HELP, JSON, PASSED_ON, USAGE
from hadar_slurm.submit.real_sbatch import SbatchNotFound, find_sbatch, is_second_call
from hadar_slurm.submit.request import SbatchRequest, parse_words, with_script
from hadar_slurm.submit.script import read_script

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
        return _submit(request._replace(flags=frozenset((PASSED_ON,))))
    return _submit(with_script(request, read_script))


def _submit(request: SbatchRequest) -> int:
    """Print the call for a dry run, else execute it; run it if its answer is needed here."""
    is_json, is_dry = JSON in request.flags, DRY_RUN in request.flags
    environment = user_environment()
    sbatch = None if is_dry else find_sbatch(os.environ, sys.argv[0])
    try:
        call = call_for(request, environment, is_parsable=is_json)
    except Exception as error:
        if sbatch is None or is_json or isinstance(error, HadarError):
            raise
        # A failure must not stop a submission.
        _print_notes(f"failed, so plain Slurm places this job: {error!r}")
        call = Call(request.plain_call, Decision(False, ""))
    if sbatch is None:
        _print_line(request, call, *call.notes)
        _print_call(call, is_json=is_json)
        return 0
    submitted = None
    if (call.is_held or call.otherwise) and not request.is_read_once:
        from hadar_slurm.submit.trial import tried

        call, submitted = tried(request, sbatch, call, environment)
    if not (submitted or is_json or call.is_held_late):
        _print_line(request, call)
        become(sbatch, call.argv, {**environment, **call.variables})
    from hadar_slurm.submit.trial import submit

    status, answer, call, job = submitted or submit(sbatch, call, environment)
    if job or status == 0:
        _print_line(request, call)
        if is_json:
            _print_call(call, job, is_json=True)
    # What sbatch has printed in place of a job's number may say why.
    if not (is_json and job):
        _print(answer, sys.stderr if is_json else sys.stdout)
    return status


def _print_call(call: Call, answer: str = "", *, is_json: bool) -> None:
    """Print the call and a preview for people, or both and sbatch's answer as JSON."""
    from hadar_slurm.submit.describing.preview import as_json, as_text

    job, _, cluster = answer.partition(";")
    text = as_json(call, job or None, cluster or None) if is_json else as_text(call)
    _print(f"{text}\n", sys.stdout)


def _print(text: str, stream: TextIO | None) -> None:
    """Print a text that the user's locale may not be able to encode.

    A failure to print changes nothing, as for sbatch: the job is submitted.
    """
    try:
        if stream is not None:
            with open(stream.fileno(), "wb", closefd=False) as file:
                file.write(os.fsencode(text))
    except OSError:
        return


def _print_line(request: SbatchRequest, call: Call, *notes: str) -> None:
    """Print the decision and these notes, unless the user, the site or the output forbids it."""
    is_quiet = os.environ.get("HADAR_QUIET", "") not in ("", "0") or JSON in request.flags
    if call.decision.why and not (is_quiet or {"quiet", "parsable"} & request.values.keys()):
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
