"""Finds where sbatch's own options end and the script begins.

hadar-sbatch passes sbatch's options on unchanged and needs to know only which of them take a value
as a separate word. From the manual pages of sbatch 22.05 to 26.05. Imports little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

SHORT_WITH_VALUE = frozenset("AabBcCdDeFGiJLmMnNopqStwx")
LONG_WITH_VALUE = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    constraint container container-id container-type context core-spec cores-per-socket cpu-freq
    cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
    export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus network nodefile
    nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
    ntasks-per-tres open-mode output partition power prefer priority profile qos reservation
    resources segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core
    time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap
    """.split()
)
# The value is optional, and follows only after an equals sign.
_LONG_OPTIONAL_VALUE = frozenset(
    "exclusive get-user-env nice no-kill oom-kill-step propagate resv-ports".split()
)
# Without a value; listed to resolve abbreviated names.
_LONG_ALONE = frozenset(
    """
    consolidate-segments contiguous help hold ignore-pbs no-requeue overcommit oversubscribe
    parsable quiet reboot requeue spread-job spread-segments stepmgr test-only usage use-min-nodes
    verbose version wait
    """.split()
)
_LONG = LONG_WITH_VALUE | _LONG_OPTIONAL_VALUE | _LONG_ALONE
_SHORT_NAMES = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task",
    "C": "constraint", "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile",
    "G": "gpus", "h": "help", "H": "hold", "i": "input", "J": "job-name", "L": "licenses",
    "m": "distribution", "M": "clusters", "n": "ntasks", "N": "nodes", "o": "output",
    "p": "partition", "q": "qos", "Q": "quiet", "S": "core-spec", "t": "time", "V": "version",
    "w": "nodelist", "x": "exclude", "W": "wait",
}  # fmt: skip
# A colon separates the components of a heterogeneous job; kept as an option of that name.
COMPONENT = ":"
# Variables that give sbatch options which hadar-sbatch reads. They override the script.
_NAMED_ALIKE = """
    clusters constraint container exclusive export gpus gpus-per-node gpus-per-socket gpus-per-task
    gres job-name no-requeue open-mode partition qos reservation
    """
_VARIABLES = {f"SBATCH_{name.upper().replace('-', '_')}": name for name in _NAMED_ALIKE.split()} | {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WAIT": "wait",
    "SLURM_CLUSTERS": "clusters",
}


class SbatchOption(NamedTuple):
    """One option as the user wrote it: its long name, its value, and its words.

    If options share a word, as in -HN2, the last one has the words.
    """

    name: str
    value: str | None
    words: tuple[str, ...]


def split_options(
    words: Sequence[str], with_value: Collection[str] = ()
) -> tuple[list[SbatchOption], list[str]]:
    """Return the options and the rest: the script and its arguments, `--` included.

    `with_value` names options that sbatch does not know and that take a value.
    """
    options: list[SbatchOption] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == COMPONENT:
            options.append(SbatchOption(COMPONENT, None, (word,)))
        elif word in ("-", "--") or not word.startswith("-"):
            break
        else:
            options += _parse_word(word, words[position + 1 : position + 2], with_value)
        position += len(options[-1].words)
    return options, list(words[position:])


def options_in(environment: Mapping[str, str]) -> list[SbatchOption]:
    """Return the options of `_VARIABLES` that sbatch will take from its environment."""
    return [
        SbatchOption(name, environment[variable], ())
        for variable, name in _VARIABLES.items()
        if variable in environment
    ]


def _parse_word(
    word: str, following: Sequence[str], with_value: Collection[str]
) -> Iterator[SbatchOption]:
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if name not in _LONG:
            # An unambiguous abbreviation stands for the full name, as in getopt_long.
            meant = [full for full in _LONG if full.startswith(name)]
            name = meant[0] if len(meant) == 1 else name
        if not equals and following and (name in LONG_WITH_VALUE or name in with_value):
            yield SbatchOption(name, following[0], (word, following[0]))
        else:
            yield SbatchOption(name, value if equals else None, (word,))
        return
    # A cluster such as -HN2: every letter is an option until one takes a value.
    for index, letter in enumerate(word[1:], start=1):
        name = _SHORT_NAMES.get(letter, letter)
        value = word[index + 1 :]
        if letter not in SHORT_WITH_VALUE:
            yield SbatchOption(name, None, () if value else (word,))
            continue
        if value or not following:
            yield SbatchOption(name, value, (word,))
        else:
            yield SbatchOption(name, following[0], (word, following[0]))
        return
