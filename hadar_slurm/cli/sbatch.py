"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly.

Modules that only managed jobs need are imported late: they take longer than all else here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from hadar_slurm.errors import HadarError, SbatchNotFound, UsageError
from hadar_slurm.submit.call import call_for
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
)
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
    if is_passed_on or _QUESTIONS & request.values.keys():
        become(find_sbatch(os.environ, sys.argv[0]), request.plain_call, user_environment())
    return _submit(with_script(request, read_script))


def _submit(request: SbatchRequest) -> int:
    """Print the call for a dry run, else execute it; run it if its output is to be in the JSON."""
    is_dry_run, is_json = DRY_RUN in request.flags, JSON in request.flags
    environment = user_environment()
    sbatch = None if is_dry_run else find_sbatch(os.environ, sys.argv[0])
    try:
        call = call_for(request, environment, is_parsable=is_json)
    except Exception as error:
        if sbatch is None or is_json or isinstance(error, HadarError):
            raise
        # A failure must not stop a submission.
        _print_notes(f"failed, so plain Slurm places this job: {error!r}")
        become(sbatch, request.plain_call, environment)
    # The user or the site may silence notes that are not errors.
    is_quiet = os.environ.get("HADAR_QUIET", "") not in ("", "0")
    if not (is_quiet or is_json or {"quiet", "parsable"} & request.values.keys()):
        _print_notes(call.decision.line, *(call.notes if is_dry_run else ()))
    environment |= call.variables
    if sbatch and not is_json:
        become(sbatch, call.argv, environment)
    status, answer = run(sbatch, call.argv, environment) if sbatch else (0, "")
    if answer or status == 0:
        from hadar_slurm.submit.preview import as_json, as_text

        job, _, cluster = answer.partition(";")
        text = as_json(call, job or None, cluster or None) if is_json else as_text(call)
        # The user's locale may not be able to encode the text.
        sys.stdout.buffer.write(os.fsencode(text + "\n"))
    return status


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
