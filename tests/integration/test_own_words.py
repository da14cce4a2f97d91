"""Jobs are moved by the words that their users have already written: --signal and --requeue.

The scripts are the public idioms, unmodified; the program is a training that counts its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.counted_steps import KNOWN, trained, write_program
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster

pytestmark = pytest.mark.slurm

STEPS = 300
# Each with the lines of its script, and how often the job may be moved: at any time, or once.
MOVED = {
    "requeues itself": (
        "B:USR1@3",
        True,
        "finish() { kill -USR1 $pid; wait $pid; scontrol requeue $SLURM_JOB_ID; }",
        "trap finish USR1",
        "python3 train.py exits 0 &",
        "pid=$!",
        "wait $pid",
    ),
    "passes on and exits": (
        "B:USR1@3",
        True,
        "trap 'kill -USR1 $pid; wait $pid; exit 0' SIGUSR1",
        "python3 train.py exits 0 &",
        "pid=$!",
        "wait $pid",
    ),
    "a step ends": ("SIGUSR1@3", True, "srun python3 train.py exits 0"),
    "a step fails": ("SIGUSR1@3", False, "srun python3 train.py exits 3"),
    "saves and goes on": ("USR1@3", False, "srun python3 train.py 'goes on'"),
}
LOSES = {
    "ignores it": ("USR1@3", False, "srun python3 train.py ignores"),
    "dies of it": ("USR1@3", False, "srun python3 train.py dies"),
}
STAYS = {
    "log rotation": ("--requeue", "trap 'mv log log.1; kill -HUP $logger' USR1"),
    "debugging": ("--requeue", "trap nvidia-smi USR1"),
    "another signal": ("--requeue", "trap 'kill $!; exit' TERM"),
    "no --requeue": ("", "trap 'kill $!; exit' USR1"),
    "--no-requeue": ("--requeue --no-requeue", "trap 'kill $!; exit' USR1"),
    "forbidden": ("--requeue --hadar-checkpoint=no", "trap 'kill $!; exit' USR1"),
    "an array": ("--requeue --array=0", "trap 'kill $!; exit' USR1"),
}


@pytest.fixture
def site(local_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[Site]:
    """Give a cluster on which all V100s are taken, and a hadard that moves by such words."""
    with local_cluster("v100:8,k80:8") as cluster:
        site = Site(cluster, tmp_path)
        site.settings |= {"policy": "hadar", "round_seconds": 4, "restart_cost_seconds": 0.5}
        write_program(site, steps=STEPS, signal="SIGUSR1", every=10**9)
        yield site
        site.close()


def submit(site: Site, name: str, *words: str, lines: tuple[str, ...]) -> JobId:
    """Submit a user's script, which says nothing of hadard; its speeds are known."""
    script = site.script(name.replace(" ", "-"), *lines)
    return site.submit(*KNOWN, "--output=%j.out", *words, script)


def signalled(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of an idiom's script."""
    signal, _, *lines = words
    return (f"#SBATCH --signal={signal}", "#SBATCH --requeue", *lines)


def test_the_public_idioms_are_moved_and_end_as_unmoved(site: Site) -> None:
    """No step is trained twice by those that save; others lose one run once, and then stay."""
    fast = site.occupy(n1="gpu:8")
    site.start(moves="{default: signals}")
    kinds = MOVED | LOSES
    jobs = {name: submit(site, name, lines=signalled(name, w)) for name, w in kinds.items()}
    site.until_running(*jobs.values())
    eventually(lambda: all(len(trained(site, job)[0]) > 30 for job in jobs.values()), "they train")
    site.free(*fast.values())
    done = [site.directory / f"{job}.done" for job in jobs.values()]
    told = [*jobs.values()]
    eventually(lambda: all(path.exists() for path in done), lambda: site.told(*told), 120)
    for name, job in jobs.items():
        counts, nodes = trained(site, job)
        assert nodes == ["n2", "n1"], (name, site.told(job))
        assert set(counts) == {*range(1, STEPS + 1)}, name
        assert site.queue()[job].restarts == 1, name
        if name in LOSES or name == "saves and goes on":
            # It trains on until it is requeued, 3 s after the signal.
            assert max(counts.values()) == 2, name
        else:
            assert max(counts.values()) == 1, name
        remarks = {r for line in site.lines() for r in line["jobs"].get(job, {}).get("remarks", ())}
        stays = f"not migrated: its run 1 did not save on {kinds[name][0].replace('SIG', '')}"
        assert any(r.startswith(stays) for r in remarks) != kinds[name][1], (name, remarks)


def test_the_next_hadard_sends_no_second_signal(site: Site) -> None:
    """It requeues a job that trains on, once the time is over that its signal has."""
    fast = site.occupy(n1="gpu:8")
    site.start(moves="{default: signals}")
    lines = signalled("on", ("USR1@6", "", "srun python3 train.py 'goes on'"))
    job = submit(site, "on", lines=lines)
    site.until_running(job)
    eventually(lambda: len(trained(site, job)[0]) > 120, "it trains for twice that time")
    site.free(*fast.values())
    signals = site.directory / f"{job}.signals"
    eventually(signals.exists, lambda: site.told(job))
    site.kill(site.hadard)
    site.start(moves="{default: signals}")
    eventually(lambda: site.queue()[job].restarts == 1, lambda: site.told(job))
    eventually((site.directory / f"{job}.done").exists, lambda: site.told(job), 60)
    assert signals.read_text() == "1 n2\n"
    assert trained(site, job)[1] == ["n2", "n1"]


def test_other_uses_of_a_signal_are_not_moved(site: Site) -> None:
    """Nor where its user or the site does not allow it, nor where another job waits for its end."""
    fast = site.occupy(n1="gpu:8")
    site.start(moves="{default: signals}")
    jobs = {}
    for name, (words, trap) in STAYS.items():
        lines = ("#SBATCH --signal=B:USR1@1", trap, "sleep 600 &", "wait")
        jobs[name] = submit(site, name, *words.split(), lines=lines)
    moving = MOVED["passes on and exits"]
    awaited = submit(site, "awaited", lines=signalled("awaited", moving))
    after = ["--dependency=afterany:" + awaited, "--wrap=true"]
    site.submit(*after, command=["sbatch"])
    eventually(
        lambda: [row.state for row in site.queue().values()].count("RUNNING") == len(STAYS) + 2,
        lambda: site.told(*jobs.values()),
    )
    site.until_rounds(2)
    site.free(*fast.values())
    site.until_rounds(4)
    rows = site.queue()
    assert {rows[job].restarts for job in rows} == {0}
    stops = [a for line in site.lines() for a in line["actions"] if a["do"] == "stop"]
    assert stops == []
    remarks = "; ".join(site.seen(awaited)["remarks"])
    assert "other jobs wait for its end" in remarks


@pytest.mark.parametrize("moves", ["{}", "{default: signals, partition=main: stated}"])
def test_the_site_decides(site: Site, moves: str) -> None:
    """Only a site that says so moves jobs by these words, and hadar-sbatch says so."""
    site.start(moves=moves)
    script = site.script("job", *signalled("job", MOVED["requeues itself"]))
    said = site.hadar_sbatch(*KNOWN, "--hadar-dry-run", script)
    assert "may be moved" not in said.stderr + said.stdout
    assert "--open-mode" not in said.stdout


def test_the_line_says_by_which_words(site: Site) -> None:
    """And how to forbid it."""
    site.start(moves="{partition=main: signals}")
    script = site.script("job", *signalled("job", MOVED["requeues itself"]))
    said = site.hadar_sbatch(*KNOWN, "--hadar-dry-run", script)
    assert "may be moved by its --signal=B:USR1@3; not with --no-requeue" in said.stderr
    assert "--open-mode=append" in said.stdout
