"""A call of hadar-sbatch with the options of environment and script. Pure. Imports little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.opting_out import OPT_OUT_VARIABLE, is_opted_out, with_opt_out
from hadar_slurm.submit.gpu_options import GpuOption, gpu_options
from hadar_slurm.submit.options import COMPONENT, SbatchOption, options_in, split_options
from hadar_slurm.submit.own_options import NO_HADAR, PREFIX, WITH_VALUE, take_own_options
from hadar_slurm.submit.script import read_directives

# Second names of sbatch's options.
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


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
    # The given ones of FLAGS, or PASSED_ON.
    flags: frozenset[str] = frozenset()
    # Why the script's #SBATCH lines could not be parsed.
    unreadable: str = ""
    # The script is a named pipe, which only one process can read.
    is_read_once: bool = False
    # The script's.
    text: str = ""


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
    def opts_out(self) -> bool:
        """Return whether the job is to be left to plain Slurm, by an option or its comment."""
        return NO_HADAR in self.flags or is_opted_out(self.values.get("comment", ""))

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
    options, script = split_options(words, WITH_VALUE)
    found, flags, rest = take_own_options(options)
    if environment.get(OPT_OUT_VARIABLE) == "no":
        flags |= {NO_HADAR}
    return SbatchRequest(found, rest, script, inherited=options_in(environment), flags=flags)


def with_script(
    request: SbatchRequest, read_script: Callable[[str, str], str | None]
) -> SbatchRequest:
    """Return the request with the options of the script's lines; the command line wins.

    `read_script` gives a script's text by its name and the directory of --chdir, "" without one;
    None: only sbatch may read it.
    """
    if request.script_name is None:
        return request
    text = read_script(request.script_name, request.values.get("chdir", ""))
    if text is None:
        return request._replace(is_read_once=True)
    request = request._replace(text=text)
    if NO_HADAR in request.flags:
        return _with_directives(request, text)
    options, stray = split_options(read_directives(text, "#HADAR"), WITH_VALUE)
    in_script, flags, rest = take_own_options(options)
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
