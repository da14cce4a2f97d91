"""Every sample is trained once an epoch, with copies that join, leave and lose steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.files.ranges import Ranges, deal  # noqa: E402
from hadar_slurm.runtime.samples import Shuffled, positions  # noqa: E402
from hadar_slurm.runtime.stream import Stream  # noqa: E402


def read(epoch: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the samples of an epoch, in an order of its own."""
    for index in range(size):
        yield epoch, (index * 7 + epoch) % size if size % 7 else index


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 30), st.integers(0))
def test_every_sample_is_made_one_once_an_epoch(
    size: int, batch_size: int, total: int, seed: int
) -> None:
    """This holds for streams and shuffled data sets, and for copies of one process or two."""
    chance = Random(seed)
    ranks = {copy: chance.randint(1, 2) for copy in range(3)}
    # Each process of a copy has a stream, which it keeps from interval to interval.
    streams = {
        (copy, rank): Stream(lambda epoch: read(epoch, size), size)
        for copy, count in ranks.items()
        for rank in range(count)
    }
    orders = {key: Shuffled(seed=4) for key in streams}
    done, everything = Ranges(), Ranges.of([(0, total)])
    streamed: Counter[tuple[int, int]] = Counter()
    shuffled: Counter[tuple[int, int]] = Counter()
    while done != everything:
        here = chance.sample(range(3), chance.randint(1, 3))
        quotas = {copy: chance.randint(1, 9) for copy in here}
        for copy, mine in deal(everything - done, quotas).items():
            trained = mine.first(chance.randint(0, 9))
            is_lost = chance.random() < 0.2
            for step in trained:
                for rank in range(ranks[copy]):
                    where = positions(step, batch_size, rank, ranks[copy])
                    seen = streams[copy, rank].take(where)
                    indices = orders[copy, rank].indices(where, size)
                    if not is_lost:
                        streamed.update(seen)
                        shuffled.update(
                            (at // size, i) for at, i in zip(where, indices, strict=True)
                        )
            done = done if is_lost else done | trained
    epochs, rest = divmod(total * batch_size, size)
    for found in (streamed, shuffled):
        assert set(found.values()) <= {1}
        by_epoch = Counter(epoch for epoch, _ in found)
        whole = {epoch: size for epoch in range(epochs)}
        assert by_epoch == whole | ({epochs: rest} if rest else {})


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 12))
def test_the_parts_of_a_batch_are_the_batch(step: int, batch_size: int, parts: int) -> None:
    """Their sizes differ by one sample at most."""
    cut = [positions(step, batch_size, part, parts) for part in range(parts)]
    assert [each for part in cut for each in part] == list(positions(step, batch_size))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


@given(st.lists(st.integers(0, 99), min_size=1))
def test_a_stream_gives_what_lies_at_a_position(where: list[int]) -> None:
    """Positions may have any order; an epoch is opened again only to go back."""
    opened = []

    def begin(epoch: int) -> Iterator[int]:
        opened.append(epoch)
        return iter(range(1000 * epoch, 1000 * epoch + 10))

    stream = Stream(begin, 10)
    assert stream.take(where) == [1000 * (each // 10) + each % 10 for each in where]
    back = sum(after // 10 != before // 10 or after <= before for before, after in pairwise(where))
    assert len(opened) == 1 + back


def test_a_stream_without_a_size_is_one_epoch() -> None:
    """It may be endless; a position after its end raises EOFError each time."""
    stream = Stream(lambda epoch: iter(range(5)))
    assert stream.take([0, 3, 4]) == [0, 3, 4]
    for _ in range(2):
        with pytest.raises(EOFError, match=r"epoch 0 ended after 5 samples.* sample 6"):
            stream.take([6])
    assert stream.take([1]) == [1]
    with pytest.raises(ValueError, match="size must be 1 or more"):
        Stream(lambda epoch: [], 0)
