"""Lines written as differences: read back equal, from any whole line, beside any damage."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from builders import a_job, a_plan, a_snapshot, whole_journal
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.actions import Outcome, Renew, Start, Status
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import Journal, Line
from hadar_slurm.journal.chain import Encoder
from hadar_slurm.journal.decoder import Decoder
from hadar_slurm.journal.difference import difference
from hadar_slurm.journal.reader import (
    chains_backwards,
    read_journal,
    read_last,
    tail_begin,
)
from hadar_slurm.journal.tables import WrittenTables, follow
from hadar_slurm.status.journal_search import newest_with
from hadar_slurm.web.follower import Follower

NAMES = [*map(str, range(1, 12)), *(f"20_{task}" for task in range(1, 8))]
GANGS = [{}, {"0": {"n1": {"V100": 1}}}, {"0": {"n2": {"K80": 2}}, "1": {"n1": {"V100": 1}}}]
NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 250.5, 1e300, float("inf"), -0.0]),
    st.integers(0, 5000).map(float),
    st.floats(0, 1e6).map(lambda number: round(number, 3)),
)


@st.composite
def jobs(draw: st.DrawFn) -> Line:
    """Return a job of one of few kinds."""
    job: Line = {
        "phase": draw(st.sampled_from(["queued", "running", "running", "starting"])),
        "user": draw(st.sampled_from(["alice", 'b"o\u2028b'])),
        "workload": "w",
        "gpus": draw(st.sampled_from([1, 2])),
        "steps_done": draw(NUMBERS),
        "holds": draw(st.sampled_from(GANGS)),
        "throughputs": draw(st.sampled_from([{"v100": 2.0}, {"v100": 2.5, "k80": 1.0}])),
    }
    unusual = {"fair_share": st.sampled_from([0.5, 0.25, 1, True]), "pinned": st.just(True)}
    return job | draw(st.fixed_dictionaries({}, optional=unusual))


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Line]:
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES))


def actions() -> st.SearchStrategy[list[Line]]:
    one = st.fixed_dictionaries(
        {
            "do": st.sampled_from(["renew", "renew", "start", "stop"]),
            "job": st.sampled_from(NAMES),
            "copy": st.integers(0, 1),
            "gang": st.sampled_from([{"n1": {"V100": 1}}, {"n2": {"K80": 2}}]),
            "status": st.sampled_from(["done", "done", "refused"]),
            "detail": st.sampled_from(["", "no"]),
        }
    )
    return st.lists(one, max_size=12)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Return any line, also of a round that observed nothing."""
    line: Line = {"version": 2, "round": draw(st.integers(0, 9)), "time_s": draw(NUMBERS)}
    if mode := draw(st.sampled_from(["", "hold", "observe"])):
        line["mode"] = mode
    if draw(st.integers(0, 4)):
        line |= {
            "nodes": draw(tables(st.sampled_from([{"open": True}, {"open": False}]))),
            "occupied": draw(tables(st.sampled_from(GANGS))),
            "jobs": draw(tables(jobs())),
            "ended": draw(tables(st.sampled_from([{"phase": "done", "end_s": 1.5}, {}]))),
        }
    line["plan"] = draw(st.one_of(st.none(), tables(st.sampled_from(GANGS))))
    line["waiting"] = draw(tables(st.sampled_from(["it waits for GPUs", "why", "the price"])))
    line["actions"] = draw(actions())
    more = {"forked": tables(st.just({"a": 1})), "credits": tables(st.just({"times": 3.2}))}
    return line | draw(st.fixed_dictionaries({}, optional=more))


def encoded(written: list[Line]) -> list[bytes]:
    """Return the texts of lines, differences wherever that is possible."""
    encoder = Encoder(plain_bytes=0)
    return [encoder.text_of(line) for line in written]


def decoded(texts: list[bytes]) -> list[Line | None]:
    """Return the lines of texts; None for a text that is left out or damaged."""
    decoder, found = Decoder(), list[Line | None]()
    for text in texts:
        try:
            found.append(decoder.line_of(text))
        except ConfigError:
            found.append(None)
    return found


@given(st.lists(lines(), max_size=8))
def test_differences_give_the_lines_again(written: list[Line]) -> None:
    """Each line equals the one made of its difference, and lines made before stay as they were."""
    states: dict[str, WrittenTables] = {}
    readers: dict[str, WrittenTables] = {}
    found: list[Line] = []
    for line in written:
        mode = line.get("mode", "")
        tree = difference(states.setdefault(mode, WrittenTables()), line)
        follow(states[mode], copy.deepcopy(tree))
        found.append(
            follow(readers.setdefault(mode, WrittenTables()), json.loads(json.dumps(tree)))
        )
    assert found == written


@given(st.lists(lines(), max_size=8))
def test_lines_that_are_not_kept_are_the_same(written: list[Line]) -> None:
    """Each line read without copies is right until the next one is read."""
    decoder = Decoder()
    for text, line in zip(encoded(written), written, strict=True):
        assert decoder.line_of(text, keeps=False) == line


@given(st.lists(lines(), max_size=8))
def test_any_lines_are_read_back(written: list[Line]) -> None:
    """A sequence of lines of several modes, written as the encoder chooses, is read back."""
    assert decoded(encoded(written)) == written


@given(st.lists(lines(), min_size=1, max_size=10), st.data())
def test_reading_may_begin_anywhere(written: list[Line], data: st.DataObject) -> None:
    """From any text on, what is read is right, and all is read from a whole line of each mode."""
    texts = encoded(written)
    begin = data.draw(st.integers(0, len(texts) - 1))
    found = decoded(texts[begin:])
    assert all(line in (None, right) for line, right in zip(found, written[begin:], strict=True))
    if begin == 0 or all(b'"step":0' in text for text in texts[begin:]):
        assert None not in found


@given(st.lists(lines(), min_size=1, max_size=8), st.data())
def test_damage_is_never_shown(written: list[Line], data: st.DataObject) -> None:
    """After any changed byte or missing lines, a line is right or left out."""
    texts = encoded(written)
    number = data.draw(st.integers(0, len(texts) - 1))
    text = bytearray(texts[number])
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(text) - 2))
        text[place] = data.draw(st.integers(32, 126).filter(lambda byte: byte != text[place]))
        texts[number] = bytes(text)
        right = written
    else:
        del texts[number]
        right = written[:number] + written[number + 1 :]
    for found, expected in zip(decoded(texts), right, strict=True):
        # A version that is not known, or a first field that is not, is refused as well.
        assert found is None or found == expected


def a_round(index: int, *, jobs: int = 60) -> RoundRecord:
    """Return a round of many waiting jobs, and one that trains on."""
    names = [str(1000 + number) for number in range(index, jobs + index)]
    runs = a_job("1", 2, on="n1:V100:2", steps=10_000, done=100.0 * index)
    snapshot = a_snapshot("2xV100", runs, *map(a_job, names), now_s=60.0 * index)
    plan = a_plan({"1": "n1:V100:2"}, dict.fromkeys(names, WaitReason.OUTBID))
    gang = runs.allocation.gangs[0]
    action = (Renew if index else Start)(runs.job_id, 0, gang)
    outcomes = (Outcome(action, Status.DONE),)
    return RoundRecord(Round(index, 60.0 * index, 60.0), "round end", "p", snapshot, plan, outcomes)


def write(path: Path, rounds: range, modes: tuple[str, ...] = ("",), **options: Any) -> None:
    journal = Journal(path, **{"plain_bytes": 1000, **options})
    for index in rounds:
        for mode in modes:
            journal.write(a_round(index), mode=mode)
    journal.close()


def steps(path: Path) -> list[int | None]:
    """Return the step of each line in a file."""
    return [json.loads(text).get("step") for text in path.read_text().splitlines()]


def test_a_difference_is_short(tmp_path: Path) -> None:
    """Where little changes, a line has a fraction of the whole."""
    path = tmp_path / "j"
    write(path, range(8))
    first, *others = path.read_text().splitlines()
    assert steps(path) == list(range(8))
    assert len(first) < len(json.dumps(next(read_journal(path)))) / 2
    assert max(map(len, others)) < len(first) / 2


def test_who_is_believed_less_costs_ordinary_rounds_nothing(tmp_path: Path) -> None:
    """The journal has a credit when it changes; all rounds that are read have it."""
    sizes = {}
    more: dict[str, object] = {"credits": {"ada": {"times": 3.2, "jobs": 4, "at_s": 10}}}
    for name, facts in (("without", {}), ("with", more)):
        journal = Journal(tmp_path / name, plain_bytes=1000)
        for index in range(6):
            journal.write(a_round(index), more=facts)
        journal.close()
        sizes[name] = [len(text) for text in (tmp_path / name).read_text().splitlines()]
    assert sizes["with"][1:] == sizes["without"][1:]
    assert sizes["with"][0] > sizes["without"][0]
    assert all(line["credits"] == more["credits"] for line in read_journal(tmp_path / "with"))


def test_a_short_line_is_plain(tmp_path: Path) -> None:
    """The lines of a small site have every field, without a program that expands them."""
    path = tmp_path / "j"
    write(path, range(3), plain_bytes=10**6)
    assert [len(json.loads(text)["jobs"]) for text in path.read_text().splitlines()] == [61] * 3


def test_a_whole_line_comes_again(tmp_path: Path) -> None:
    """A whole line is written once the differences since the last one outweigh it."""
    path = tmp_path / "j"
    write(path, range(120))
    assert steps(path).count(0) > 1
    assert [line["round"] for line in read_journal(path)] == list(range(120))


@pytest.mark.parametrize("modes", [("",), ("hold", "observe")])
def test_every_file_can_be_read_alone(tmp_path: Path, modes: tuple[str, ...]) -> None:
    """After rotations, and after restarts, each file begins with a whole line of each mode."""
    path = tmp_path / "j"
    for begin in (0, 30):
        write(path, range(begin, begin + 30), modes, max_bytes=6_000, keep=50)
    files = sorted(tmp_path.glob("j*"))
    assert len(files) > 2
    for file in files:
        found = list(read_journal(file))
        assert len(found) == len(steps(file))
        assert all(line["jobs"]["1"]["steps_done"] == 100.0 * line["round"] for line in found)
    rounds = [line["round"] for line in whole_journal(path)]
    assert rounds == [index for index in range(60) for _ in modes]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_end_is_read_from_the_nearest_whole_line(tmp_path: Path, number: int) -> None:
    """The last lines of two modes are whole, also those that an older file has."""
    path = tmp_path / "j"
    write(path, range(20), ("hold", "observe"), max_bytes=8_000)
    assert read_last(path, number) == whole_journal(path)[-number:]


def test_a_file_emptied_or_written_by_others_goes_on_with_a_whole_line(tmp_path: Path) -> None:
    """logrotate's copytruncate, or a second program, does not break the lines that follow."""
    path = tmp_path / "j"
    journal = Journal(path, plain_bytes=1000)
    for index in range(3):
        journal.write(a_round(index))
    path.write_bytes(b"")
    for index in range(3, 6):
        journal.write(a_round(index))
    assert [line["round"] for line in read_journal(path)] == [3, 4, 5]
    other = Journal(path, plain_bytes=1000)
    other.write(a_round(6))
    for index in (7, 8):
        journal.write(a_round(index))
    assert [line["round"] for line in read_journal(path)] == [3, 4, 5, 6, 7, 8]
    journal.close()
    other.close()


def damaged(path: Path, number: int) -> None:
    """Change a digit of a line in a file, so that it is still JSON."""
    texts = path.read_bytes().splitlines(keepends=True)
    texts[number] = texts[number].replace(b'"length_s":60', b'"length_s":90', 1)
    path.write_bytes(b"".join(texts))


def test_damage_ends_with_the_next_whole_line(tmp_path: Path) -> None:
    """A damaged line is named with its file and number; later lines are left out or right."""
    path = tmp_path / "j"
    write(path, range(4))
    write(path, range(4, 8))
    damaged(path, 1)
    told: list[str] = []
    found = list(read_journal(path, told.append))
    assert [line["round"] for line in found] == [0, 4, 5, 6, 7]
    assert [text.split(": ")[0] for text in told] == [f"{path}:{n}" for n in (2, 3, 4)]
    with pytest.raises(ConfigError, match=rf"^{path}:2: .* damaged or missing"):
        list(read_journal(path))
    assert [line["round"] for line in read_last(path, 2)] == [6, 7]
    damaged(path, 5)
    with pytest.raises(ConfigError, match=r"near its end: .* damaged or missing"):
        read_last(path, 1)


def test_a_follower_counts_damage_and_shows_no_wrong_state(tmp_path: Path) -> None:
    """The page keeps the last sound round, counts the others, and goes on with a whole line."""
    path = tmp_path / "j"
    write(path, range(4))
    damaged(path, 2)
    with Follower(path) as follower:
        assert (follower.strange, follower.history.now.number) == (2, 1)
        write(path, range(4, 7))
        follower.poll()
        assert (follower.strange, follower.history.now.number) == (2, 6)
        assert follower.history.now.jobs["1"]["steps_done"] == 600.0


def test_a_follower_begins_in_the_middle(tmp_path: Path) -> None:
    """The page begins with a whole line, and differences before it are no damage."""
    path = tmp_path / "j"
    write(path, range(6))
    write(path, range(6, 12))
    end = len(b"".join(path.read_bytes().splitlines(keepends=True)[6:]))
    for most, first in ((end, 6), (end + 10, 6), (end - 1, 6), (10**6, 0)):
        with Follower(path, max_bytes=most) as follower:
            assert follower.strange == 0
            assert follower.history.rounds[0].number == first
            assert follower.history.now.number == 11


def test_a_group_read_backwards_is_complete(tmp_path: Path) -> None:
    """Each group begins with whole lines, and the tail of a file is cut between groups."""
    path = tmp_path / "j"
    write(path, range(4), ("hold", "observe"))
    write(path, range(4, 9), ("hold", "observe"))
    groups = list(chains_backwards(path))
    assert [len(group) for group in groups] == [10, 8]
    assert all(None not in decoded(group) for group in groups)
    size, length = path.stat().st_size, sum(len(text) + 1 for text in groups[0])
    begins = [tail_begin(path, most) for most in (length - 1, length, size - 1, size)]
    assert begins == [size, size - length, size - length, 0]


def test_a_job_is_found_in_the_round_that_last_had_it(tmp_path: Path) -> None:
    """The newest round of a job that has ended is found although its line does not name it."""
    path = tmp_path / "j"
    write(path, range(30))
    for name, last in (("1005", 5), ("1020", 20), ("1", 29)):
        found = newest_with(path, (name,))
        assert found is not None
        assert (found[0], found[1]["round"]) == (name, last)
    assert newest_with(path, ("99",)) is None


@settings(max_examples=30)
@given(cut=st.integers(1, 4000))
def test_a_cut_file_loses_its_last_line_only(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file cut off anywhere is read up to the cut, and writing goes on with a whole line."""
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, range(6))
    content = path.read_bytes()[:-cut]
    path.write_bytes(content)
    kept = content.count(b"\n")
    assert [line["round"] for line in read_journal(path)] == list(range(kept))
    write(path, range(6, 8))
    assert [line["round"] for line in read_journal(path)] == [*range(kept), 6, 7]
