"""`typing: list` on a real Slurm: a gang gets GPUs of one type, and waits for no certain one."""

from __future__ import annotations

import pytest
from integration.site import HADAR_SBATCH, Site

pytestmark = pytest.mark.slurm

WRAP = "--wrap=sleep 600"
# The other nodes have one GPU type each: two v100, two p100, one k80.
APART = "--exclude=n6"


@pytest.fixture
def listing(site: Site) -> Site:
    """A site without hadard, that says `typing: list`."""
    path = site.directory / "hadar.yaml"
    path.write_text("typing: list\n")
    site.environment["HADAR_CONFIG"] = str(path)
    return site


def types_of(site: Site, *words: str, command: tuple[str, ...] = HADAR_SBATCH) -> dict[str, int]:
    """Submit a job, wait until it runs, and return its GPUs by type."""
    job = site.submit(APART, "-t9", *words, WRAP, command=command)
    site.until_running(job)
    found: dict[str, int] = {}
    for gpus in site.tree(job).values():
        for name, count in gpus.items():
            found[name] = found.get(name, 0) + count
    return found


def fill(site: Site, node: str) -> None:
    """Let a job have all GPUs of a node."""
    site.until_running(site.submit(f"-w{node}", "--gres=gpu:4", WRAP, command=("sbatch",)))


@pytest.mark.parametrize(
    "words",
    [
        ("-N2", "--gres=gpu:4"),
        ("-G8",),
    ],
    ids=" ".join,
)
def test_a_gang_gets_one_type_and_starts_on_a_slower_one(
    listing: Site, words: tuple[str, ...]
) -> None:
    """The fastest while its nodes are free, then the next, where plain sbatch mixes the types."""
    assert types_of(listing, *words) == {"v100": 8}
    listing.cluster.cancel_jobs()
    fill(listing, "n1")
    assert types_of(listing, *words) == {"p100": 8}
    listing.cluster.cancel_jobs()
    fill(listing, "n1")
    assert len(types_of(listing, *words, command=("sbatch",))) == 2


def test_no_gang_waits_for_a_drained_node(listing: Site) -> None:
    """Where one node of each type is up, it may mix them, and starts."""
    for node in ("n2", "n4"):
        listing.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"])
    assert len(types_of(listing, "-N2", "--gres=gpu:4")) == 2


def test_mixed_nodes_are_named_and_nothing_is_added(listing: Site) -> None:
    """n6 has GPUs of both types that its features name."""
    done = listing.run([*HADAR_SBATCH, "-N2", "--gres=gpu:4", "-t9", WRAP])
    assert "; n6 has GPUs of several types (k80, v100): its GPUs may be of sev" in done.stderr
    assert "constraint" not in done.stderr
