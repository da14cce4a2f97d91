"""The command line of hadar-sbatch: own options, sbatch's, the script. Pure. Imports little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.opting_out import OPT_OUT_VARIABLE, with_opt_out
from hadar_slurm.submit.gpu_options import GpuOption, gpu_options
from hadar_slurm.submit.options import COMPONENT, SbatchOption, options_in, split_options
from hadar_slurm.submit.script import read_directives

PREFIX = "--hadar-"

USAGE = """\
usage: hadar-sbatch [--hadar-OPTION ...] [any sbatch option] [script [args]]

Submits with sbatch. If hadard is alive, the job is held until hadard chooses its GPUs. One line on
standard error says whether hadard places the job, or why not; --quiet and --parsable silence it.

  --hadar-model NAME          the model, e.g. ResNet-50: jobs with the same model and batch size
                              share one throughput (default: the job's name)
  --hadar-batch-size N        the model's batch size
  --hadar-throughput T=R,...  instead of a model: steps/s of the whole gang on each GPU type,
                              e.g. v100=12.5,k80=1.3
  --hadar-steps N             total number of training steps; default: the steps that take --time
                              on the slowest GPU type
  --hadar-gang GANG           GPUs: 4 (any uniform layout) or 2x2 (GPUs per node x nodes);
                              default: the GPUs of sbatch's own options, else 1; with
                              --hadar-copies also the GPUs of a copy by type: v100:1,k80:4
  --hadar-types T,...         the GPU types that the job may have, e.g. a100,h100 (default: the type
                              that sbatch's own options name, else all whole GPUs)
  --hadar-gpu-memory SIZE     the least memory of a GPU, e.g. 40G
  --hadar-compute-capability C  the least compute capability (CUDA) of a GPU, e.g. 8.0
  --hadar-time-on TYPE        the GPU type for which --time is given: on a slower type the job gets
                              a longer time limit, within the partition's maximum
  --hadar-checkpoint LEVEL    yes: the job saves on USR1 and resumes, so it may be migrated;
                              restart:20m: it saves at times and resumes, and may be requeued
                              without a signal when it loses at most that (default no)
  --hadar-copies N|auto       train in up to N copies on separate nodes (HadarE); auto: one for
                              each suitable node. Needs hadar_slurm.runtime in the script
  --hadar-cores T:N,...       the cores of a copy by GPU type, e.g. v100:4,k80:16
  --hadar-mem T:SIZE,...      the memory of a copy by GPU type, e.g. v100:16G,k80:64G
  --hadar-restart-cost S      seconds that a migration costs the job (default: the site's)
  --hadar-dry-run             submit nothing; print the sbatch call and a preview by GPU type
  --hadar-json                print one JSON object: the submitted job, or the dry run
  --no-hadar                  submit with plain sbatch, and ignore #HADAR lines; HADAR=no in the
                              environment does the same
  --hadar-help, --help, -h    list these options

The same options may be given in the script on #HADAR lines; the command line wins. All other
options are sbatch's and are passed on unchanged; `sbatch --help` lists them."""

KNOWN = (
    *"model batch-size throughput steps gang types gpu-memory compute-capability".split(),
    *"time-on copies cores mem checkpoint restart-cost".split(),
)
DRY_RUN, JSON, NO_HADAR, HELP = "hadar-dry-run", "hadar-json", "no-hadar", "hadar-help"
FLAGS = (DRY_RUN, JSON, NO_HADAR, HELP)
# Second names of sbatch's options.
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}
_WITH_VALUE = frozenset(PREFIX[2:] + name for name in KNOWN)


class _Words(NamedTuple):
    # The --hadar-... options that describe the job, without the prefix.
    hadar_options: Mapping[str, str]
    # sbatch's options on the command line.
    options: Sequence[SbatchOption]
    # The script and its arguments.
    script: Sequence[str]
    # sbatch's options in the script.
    directives: Sequence[SbatchOption] = ()
    # sbatch's options in the environment.
    inherited: Sequence[SbatchOption] = ()
    # The given ones of FLAGS.
    flags: frozenset[str] = frozenset()
    # Why the script's #SBATCH lines could not be parsed.
    unreadable: str = ""


class SbatchRequest(_Words):
    """A parsed command line with the options of environment and script."""

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Return the last value of each of sbatch's options, "" for an option without a value.

        As for sbatch, the command line wins over the environment, and that over the script.
        """
        sources = (self.directives, self.inherited, self.options)
        given = [option for source in sources for option in source]
        return {_ALIASES.get(option.name, option.name): option.value or "" for option in given}

    @cached_property
    def gpus(self) -> Sequence[GpuOption]:
        """Return sbatch's options that request GPUs."""
        return gpu_options(self.values)

    @cached_property
    def limit_s(self) -> float:
        """Return the job's time limit in seconds, 0 if there is none or sbatch will refuse it."""
        return parse_time_limit(self.values.get("time", "")) or 0.0

    @property
    def has_components(self) -> bool:
        """Return whether this is a heterogeneous job, by a colon or a line of its script."""
        return not self.values.keys().isdisjoint((COMPONENT, "hetjob", "packjob"))

    @property
    def plain_call(self) -> tuple[str, ...]:
        """Return the user's own sbatch call, without hadar-sbatch's options."""
        return ("sbatch", *(word for option in self.options for word in option.words), *self.script)

    @property
    def opting_out(self) -> SbatchRequest:
        """Return the request with the word in its comment that keeps the job from enrolment."""
        comment = with_opt_out(self.values.get("comment", ""))
        option = SbatchOption("comment", comment, (f"--comment={comment}",))
        return self._replace(options=[*self.options, option])

    @property
    def script_name(self) -> str | None:
        """Return the script's name; "" for standard input, None with --wrap."""
        if any(option.name == "wrap" for option in self.options):
            return None
        names = self.script[1:] if self.script[:1] == ["--"] else self.script
        return names[0] if names else ""


def parse_words(words: Sequence[str], environment: Mapping[str, str]) -> SbatchRequest:
    """Return the request from command line and environment, without the script's lines."""
    options, script = split_options(words, _WITH_VALUE)
    found, flags, rest = _take_hadar_options(options)
    if environment.get(OPT_OUT_VARIABLE) == "no":
        flags |= {NO_HADAR}
    return SbatchRequest(found, rest, script, inherited=options_in(environment), flags=flags)


def with_script(request: SbatchRequest, read_script: Callable[[str, str], str]) -> SbatchRequest:
    """Return the request with the options of the script's lines; the command line wins.

    `read_script` gives a script's text by its name and the directory of --chdir, "" without one.
    """
    if request.script_name is None:
        return request
    text = read_script(request.script_name, request.values.get("chdir", ""))
    if NO_HADAR in request.flags:
        return _with_directives(request, text)
    options, stray = split_options(read_directives(text, "#HADAR"), _WITH_VALUE)
    in_script, flags, rest = _take_hadar_options(options)
    for word in (*(word for option in rest for word in option.words), *stray):
        raise JobSpecError(f"#HADAR {word}: only {PREFIX}... options are allowed there")
    both = {**in_script, **request.hadar_options}
    request = request._replace(hadar_options=both, flags=flags | request.flags)
    return _with_directives(request, text)


def _with_directives(request: SbatchRequest, text: str) -> SbatchRequest:
    """Return the request with sbatch's options in a script."""
    try:
        words = read_directives(text, "#SBATCH")
    except JobSpecError as error:
        if request.hadar_options and NO_HADAR not in request.flags:
            raise
        # sbatch will report the error.
        return request._replace(unreadable=str(error))
    options, components = split_options(words)
    # A line `#SBATCH hetjob` begins another component, as a colon does.
    begins = [SbatchOption(word.lower(), None, (word,)) for word in components[:1]]
    return request._replace(directives=[*options, *begins])


def _take_hadar_options(
    options: Iterable[SbatchOption],
) -> tuple[dict[str, str], frozenset[str], list[SbatchOption]]:
    """Split off hadar-sbatch's own options and flags."""
    found: dict[str, str] = {}
    flags = set()
    rest = []
    for option in options:
        if option.name in FLAGS:
            if option.value is not None:
                raise JobSpecError(f"--{option.name} takes no value, {option.value!r} is given")
            flags.add(option.name)
        elif option.name in _WITH_VALUE:
            if option.value is None:
                raise JobSpecError(f"--{option.name} needs a value")
            found[option.name.removeprefix(PREFIX[2:])] = option.value
        elif option.name.startswith(("hadar", "no-hadar")):
            # Takes longer to import than all the rest.
            from difflib import get_close_matches

            near = get_close_matches(option.name, [*_WITH_VALUE, *FLAGS], n=1, cutoff=0.0)[0]
            raise JobSpecError(f"unknown option --{option.name}; the nearest is --{near}")
        else:
            rest.append(option)
    return found, frozenset(flags), rest
