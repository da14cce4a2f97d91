"""The node index gives the same results as a search of all nodes."""

from __future__ import annotations

from dataclasses import replace

from builders import a_cluster
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import GpuType, NodeName
from hadar_slurm.placement.node_index import NodeIndex, ranked

V100 = GpuType("V100")


def a_shelf(text: str) -> NodeIndex:
    """Return an index of all V100s of a cluster, all free."""
    nodes = a_cluster(text).nodes
    return NodeIndex(ranked(nodes), {node.name: node.by_type.get(V100, 0) for node in nodes})


@st.composite
def shelves(draw: st.DrawFn) -> tuple[NodeIndex, dict[NodeName, int], dict[NodeName, bool]]:
    """Return a changed index, the free GPUs of each node, and whether it has one type only."""
    parts = draw(st.lists(st.sampled_from(("4xV100", "2xV100+2xK80", "3xV100")), max_size=6))
    nodes = a_cluster(",".join(parts)).nodes if parts else ()
    free = {node.name: node.by_type[V100] for node in nodes}
    most = dict(free)
    shelf = NodeIndex(ranked(nodes), free)
    for _ in range(draw(st.integers(0, 12)) if nodes else 0):
        name = draw(st.sampled_from(sorted(free)))
        now = draw(st.integers(0, most[name]))
        shelf.change(name, now - free[name])
        free[name] = now
    return shelf, free, {node.name: node.has_one_type for node in nodes}


@given(made=shelves(), gpus=st.integers(1, 4), num_nodes=st.integers(1, 3), data=st.data())
def test_the_tightest_nodes_are_found(
    made: tuple[NodeIndex, dict[NodeName, int], dict[NodeName, bool]],
    gpus: int,
    num_nodes: int,
    data: st.DataObject,
) -> None:
    """Nodes of one type are first, then by free GPUs, then by name; queries change nothing."""
    shelf, free, is_plain = made
    among = data.draw(st.none() | st.sets(st.sampled_from(sorted(free)))) if free else None
    fits = [n for n, left in free.items() if left >= gpus and (among is None or n in among)]
    fits.sort(key=lambda name: (not is_plain[name], free[name], name))
    expected = fits[:num_nodes] if len(fits) >= num_nodes else None
    for _ in range(2):
        assert shelf.total == sum(free.values())
        assert shelf.tightest(gpus, num_nodes, among) == expected
        assert shelf.with_room(gpus, among, num_nodes) == fits[:num_nodes]


@given(made=shelves(), gpus=st.integers(1, 9))
def test_any_gpus_will_do_for_a_scattered_gang(
    made: tuple[NodeIndex, dict[NodeName, int], dict[NodeName, bool]], gpus: int
) -> None:
    """A gang is placed on as few nodes as possible; None only if there are too few free GPUs."""
    shelf, free, _ = made
    counts = shelf.scatter(gpus, None)
    assert (counts is None) == (sum(free.values()) < gpus)
    if counts:
        assert sum(counts.values()) == gpus
        assert all(0 < count <= free[name] for name, count in counts.items())
        largest = sorted(free.values(), reverse=True)
        assert sum(largest[: len(counts) - 1]) < gpus


def test_a_node_that_takes_no_work_is_not_on_the_shelf() -> None:
    """GPUs freed on a node outside the index are ignored."""
    shelf = a_shelf("2xV100")
    shelf.change(NodeName("elsewhere"), 4)
    assert shelf.total == 2
    assert shelf.scatter(3, None) is None


def test_among_equals_nodes_that_are_powered_up_go_first() -> None:
    """A node that is powered down waits until its job has come up."""
    asleep, awake, mixed = a_cluster("2xV100,2xV100,2xV100+2xK80").nodes
    nodes = (replace(asleep, is_asleep=True), awake, mixed)
    shelf = NodeIndex(ranked(nodes), {node.name: 2 for node in nodes})
    assert shelf.with_room(2, None, 3) == ["n2", "n1", "n3"]
    assert shelf.with_room(2, {"n1", "n2"}, 1) == ["n2"]
