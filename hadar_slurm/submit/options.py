"""Where sbatch's own options end and the script begins.

hadar-sbatch passes sbatch's options on untouched and has to know only which of them take a value
as a separate word. From the manual pages of sbatch 22.05 to 26.05.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHORT_WITH_VALUE = frozenset("AabBcCdDeFGiJLmMnNopqStwx")
LONG_WITH_VALUE = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    constraint container container-id context core-spec cores-per-socket cpu-freq cpus-per-gpu
    cpus-per-task deadline delay-boot dependency distribution error exclude export export-file
    extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
    gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label
    mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode
    output partition power prefer priority profile qos reservation segment signal sockets-per-node
    switches tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind tres-per-task
    uid wait-all-nodes wckey workdir wrap
    """.split()
)
# These may stand alone; a value follows only after an equals sign.
_LONG_OPTIONAL_VALUE = frozenset(
    "exclusive get-user-env nice no-kill oom-kill-step propagate resv-ports".split()
)
# These take no value. They have to be known for the beginnings of names.
_LONG_ALONE = frozenset(
    """
    contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot
    requeue spread-job test-only usage use-min-nodes verbose version wait
    """.split()
)
_LONG = LONG_WITH_VALUE | _LONG_OPTIONAL_VALUE | _LONG_ALONE
_SHORT_NAMES = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task",
    "C": "constraint", "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile",
    "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "L": "licenses",
    "m": "distribution", "M": "clusters", "n": "ntasks", "N": "nodes", "o": "output",
    "p": "partition", "q": "qos", "S": "core-spec", "t": "time", "w": "nodelist",
    "x": "exclude", "W": "wait",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """One option as the user wrote it: its long name, its value, and its words.

    Of options that share a word, such as those of -HN2, the last one has the words.
    """

    name: str
    value: str | None
    words: tuple[str, ...]


def split_options(words: Sequence[str]) -> tuple[list[SbatchOption], list[str]]:
    """Return sbatch's options and the rest: the script and its arguments, `--` included."""
    options: list[SbatchOption] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--" or not word.startswith("-") or word == "-":
            break
        options += _parse_word(word, words[position + 1 : position + 2])
        position += len(options[-1].words)
    return options, list(words[position:])


def _parse_word(word: str, following: Sequence[str]) -> Iterator[SbatchOption]:
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = _full_name(name)
        if equals:
            yield SbatchOption(name, value, (word,))
        elif name in LONG_WITH_VALUE and following:
            yield SbatchOption(name, following[0], (word, following[0]))
        else:
            yield SbatchOption(name, None, (word,))
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


def _full_name(name: str) -> str:
    """Return the option that an unambiguous beginning means, as getopt_long does."""
    if name in _LONG:
        return name
    meant = [full for full in _LONG if full.startswith(name)]
    return meant[0] if len(meant) == 1 else name
