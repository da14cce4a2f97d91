"""The end of sbatch's own options. The three lists are the answers of sbatch 22.05.8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.submit.options import SbatchOption, split_options

# `sbatch --NAME` says "requires an argument".
WITH_VALUE = """
    account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    constraint container context core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task
    deadline delay-boot dependency distribution error exclude export export-file extra-node-info
    gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
    input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition
    power prefer priority profile qos reservation signal sockets-per-node switches tasks-per-node
    thread-spec threads-per-core time time-min tmp uid wait-all-nodes wckey wrap
""".split()
# Added in later versions, from the manual pages up to 26.05.
LATER_WITH_VALUE = """
    container-id container-type extra mem-update resources segment tres-bind tres-per-task
""".split()
LATER_ALONE = "consolidate-segments spread-segments stepmgr".split()
# `sbatch --NAME=1` says "doesn't allow an argument".
ALONE = """
    contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot
    requeue spread-job test-only usage use-min-nodes verbose version wait
""".split()
# The value is optional.
OPTIONAL_VALUE = "exclusive get-user-env nice no-kill propagate".split()
SHORT_WITH_VALUE = "abcdeimnopqtwxABCDFGJLMNS"
SHORT_ALONE = "hksvHOQVW"


def names_and_values(options: list[SbatchOption]) -> list[tuple[str, str | None]]:
    return [(option.name, option.value) for option in options]


def test_the_lists_are_whole() -> None:
    """No option is in two lists."""
    every = [*WITH_VALUE, *ALONE, *OPTIONAL_VALUE]
    assert len(every) == len(set(every)) == 106


@pytest.mark.parametrize("name", [*WITH_VALUE, *LATER_WITH_VALUE])
def test_an_option_with_a_value_takes_the_next_word(name: str) -> None:
    """The next word is its value, not the script."""
    options, rest = split_options([f"--{name}", "value", "script.sh", "arg"])
    assert options == [SbatchOption(name, "value", (f"--{name}", "value"))]
    assert rest == ["script.sh", "arg"]


@pytest.mark.parametrize("name", [*ALONE, *LATER_ALONE, *OPTIONAL_VALUE])
def test_an_option_that_may_stand_alone_leaves_the_next_word(name: str) -> None:
    """The next word is the script."""
    options, rest = split_options([f"--{name}", "script.sh", "arg"])
    assert options == [SbatchOption(name, None, (f"--{name}",))]
    assert rest == ["script.sh", "arg"]


@pytest.mark.parametrize("name", [*WITH_VALUE, *OPTIONAL_VALUE])
def test_a_value_after_an_equals_sign_is_part_of_the_word(name: str) -> None:
    """A value may contain equals signs or be empty."""
    for value in ("x", "a=b=c", ""):
        options, rest = split_options([f"--{name}={value}", "script.sh"])
        assert options == [SbatchOption(name, value, (f"--{name}={value}",))]
        assert rest == ["script.sh"]


@pytest.mark.parametrize("letter", SHORT_WITH_VALUE)
def test_a_letter_with_a_value(letter: str) -> None:
    """The value is in the same word or in the next one."""
    for words in ([f"-{letter}", "value"], [f"-{letter}value"]):
        options, rest = split_options([*words, "script.sh"])
        assert [option.value for option in options] == ["value"]
        assert [option.words for option in options] == [tuple(words)]
        assert rest == ["script.sh"]


@pytest.mark.parametrize("letter", SHORT_ALONE)
def test_a_letter_alone(letter: str) -> None:
    """The next word is the script."""
    options, rest = split_options([f"-{letter}", "script.sh"])
    assert [option.value for option in options] == [None]
    assert rest == ["script.sh"]


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        (["-HN2", "s"], [("hold", None), ("nodes", "2")], ["s"]),
        (["-HN", "2", "s"], [("hold", None), ("nodes", "2")], ["s"]),
        (["-HWQ", "s"], [("hold", None), ("wait", None), ("quiet", None)], ["s"]),
        (["-pgpu", "-t", "10", "s"], [("partition", "gpu"), ("time", "10")], ["s"]),
        (["-N2-4", "s"], [("nodes", "2-4")], ["s"]),
        (["-J", "-x", "s"], [("job-name", "-x")], ["s"]),
        (["--part", "gpu", "s"], [("partition", "gpu")], ["s"]),
        (["--part=gpu", "s"], [("partition", "gpu")], ["s"]),
        (["--job-n", "x", "s"], [("job-name", "x")], ["s"]),
        (["--wa", "s"], [("wa", None)], ["s"]),  # ambiguous: sbatch will say so
        (["--wait-a", "1", "s"], [("wait-all-nodes", "1")], ["s"]),
        (["--hol", "s"], [("hold", None)], ["s"]),
        (["--gpus", "2", "s"], [("gpus", "2")], ["s"]),
        (["--unheard-of", "s"], [("unheard-of", None)], ["s"]),
        (["--unheard-of=1", "s"], [("unheard-of", "1")], ["s"]),
        (["s", "-N", "2", "--mem=1"], [], ["s", "-N", "2", "--mem=1"]),
        (["-N", "1", "--", "-s", "-x"], [("nodes", "1")], ["--", "-s", "-x"]),
        (["-N1", ":", "-N2", "s", ":"], [("nodes", "1"), (":", None), ("nodes", "2")], ["s", ":"]),
        (["-"], [], ["-"]),
        (["-N"], [("nodes", "")], []),
        (["--nodes"], [("nodes", None)], []),
        (["--wrap", "sleep 1; echo --x"], [("wrap", "sleep 1; echo --x")], []),
        ([], [], []),
    ],
)
def test_command_lines(
    words: list[str], options: list[tuple[str, str | None]], rest: list[str]
) -> None:
    """Combined letters, abbreviated names, and the start of the script are recognised."""
    found, left = split_options(words)
    assert names_and_values(found) == options
    assert left == rest
    assert [word for option in found for word in option.words] + left == words


@given(
    words=st.lists(
        st.sampled_from(
            ["-H", "-HN2", "-N", "--wait", "--part", "--mem=1", "--wrap", "--", "-", "x", "-Wv", ""]
        )
        | st.text("-=aNH ", max_size=4)
    )
)
def test_no_word_is_lost_or_doubled(words: list[str]) -> None:
    """The words of the options and the rest form the command line again, in order."""
    options, rest = split_options(words)
    assert [word for option in options for word in option.words] + rest == words
