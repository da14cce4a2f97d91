"""On a real Slurm, hadard's changes race with starts and with what owners change themselves."""

from __future__ import annotations

import json
from itertools import cycle

import pytest
from integration.site import HADAR, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import detail_of
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.settings import BackendSettings

pytestmark = pytest.mark.slurm

V100_ONLY = {"v100": 20.0}
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test


def steering(site: Site) -> SlurmBackend:
    """Return a backend in this process that steers."""
    site.state_dir.mkdir(exist_ok=True)
    settings = BackendSettings(spool=site.reports, modes=Modes(Mode.STEER), poll_s=0.2)
    ledger = Ledger(site.state_dir / "ledger.json")
    table = ThroughputTable("none", {})
    return SlurmBackend(CommandLine(site.runner), table, settings, ledger, Mode.STEER)


def was_resized(site: Site, job: JobId) -> bool:
    """Return whether Slurm has resized a job."""
    return "ResizeTime=" in site.details()[job]


def test_a_job_that_starts_as_it_is_steered_keeps_its_gpus(site: Site) -> None:
    """Slurm up to 23.11 would resize the running job to the nodes of the update."""
    plain = site.occupy(**ALL_V100)
    script = site.script("rest", "exec sleep 600")
    job = site.train(V100_ONLY, "--exclude=n[3-5]", steps=LONG, gpus=4, script=script)
    backend = steering(site)
    backend.observe()
    site.free(plain["n1"])
    site.until_running(job)
    held = site.gpus(job)
    backend.apply([Start(job, 0, Gang.of({("n1", "v100"): 4}))])
    assert site.gpus(job) == held
    assert not was_resized(site, job)


def test_a_number_of_nodes_that_its_owner_sets_is_kept(site: Site) -> None:
    """hadard had set another; the job is left to Slurm from then on."""
    site.occupy(n1="gpu:4", n2="gpu:4", n6="gpu:v100:2,gpu:k80:2")
    job = site.train(V100_ONLY, "--exclude=n[3-5]", steps=LONG, gpus=2)
    backend = steering(site)
    start = Start(job, 0, Gang.of({("n1", "v100"): 1, ("n2", "v100"): 1}))

    def is_sized() -> bool:
        backend.observe()
        backend.apply([start])
        return "NumNodes=2-2 " in site.details()[job]

    eventually(is_sized, lambda: site.told(job))
    assert detail_of(site.details()[job]).excluded != ("n3", "n4", "n5")
    assert site.run(["scontrol", "update", f"JobId={job}", "NumNodes=1-2"]).returncode == 0
    for _ in range(2):
        backend.observe()
        backend.apply([])
        assert "NumNodes=1-2 " in site.details()[job]
        assert detail_of(site.details()[job]).excluded == ("n3", "n4", "n5")


@pytest.mark.parametrize("mode", ["hold", "steer"])
def test_a_job_gets_the_number_of_gpus_that_its_owner_sets(site: Site, mode: str) -> None:
    """The job is left to Slurm from then on, and never starts with the former number."""
    others = site.occupy(**dict.fromkeys(("n2", "n3", "n4", "n5"), "gpu:4"))
    site.occupy(n6="gpu:v100:2,gpu:k80:2")
    first, second = (site.occupy(n1="gpu:2")["n1"] for _ in range(2))
    site.start(mode=mode, round_seconds=1)
    script = site.script("rest", "exec sleep 600")
    words = ("--hadar-throughput=v100=20,p100=10", f"--hadar-steps={LONG}", script)
    forms = {"-G2": "TresPerJob=gres:gpu:{}", "--gres=gpu:2": "Gres=gpu:{}"}
    more, fewer = ([site.submit(form, *words) for form in forms] for _ in range(2))
    site.until_rounds(2)
    for jobs, number in ((more, 4), (fewer, 1)):
        for job, edit in zip(jobs, forms.values(), strict=True):
            done = site.run(["scontrol", "update", f"JobId={job}", edit.format(number)])
            assert done.returncode == 0, done.stderr
    site.free(first)
    site.until_rounds(3)
    site.free(second, *others.values())
    site.until_running(*more, *fewer)
    assert [len(site.gpus(job)) for job in (*more, *fewer)] == [4, 4, 1, 1]


def test_what_slurm_sets_of_a_change_that_it_refuses_is_given_back(site: Site) -> None:
    """In an inactive partition 22.05 sets excluded nodes and nice value, and then refuses."""
    partition = ["scontrol", "update", "PartitionName=main"]
    site.occupy(**dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), "gpu:4"))
    site.occupy(n6="gpu:v100:2,gpu:k80:2")
    rates = {"v100": 20.0, "k80": 10.0}
    jobs = [site.train(rates, "--exclude=n4", steps=steps, gpus=2) for steps in (600, 400, 200)]
    before = shown(site, jobs[0])
    assert site.run([*partition, "State=INACTIVE"]).returncode == 0
    site.start(mode="steer", round_seconds=1, policy="hadar")
    refused = "Requested partition configuration not available now"
    eventually(lambda: refused in site.hadard.log.read_text(), lambda: site.told(jobs[0]))
    assert any(shown(site, job) != before for job in jobs)
    site.until_rounds(2)
    assert site.run([*partition, "State=UP"]).returncode == 0
    site.until_rounds(2)
    site.hadard.stop()
    config = str(site.hadard.directory / "hadar.yaml")
    assert site.run([*HADAR, "release", "--config", config]).returncode == 0
    assert [shown(site, job) for job in jobs] == [before] * len(jobs)


def shown(site: Site, job: JobId) -> dict[str, object]:
    """Return what owners change in these tests, as Slurm shows it."""
    row, detail = site.queue()[job], detail_of(site.details()[job])
    return {
        "ReqNodeList": row.requested_nodes,
        "ExcNodeList": detail.excluded,
        "Features": row.features,
        "Nice": detail.nice,
        "TimeLimit": detail.limit_s,
        "hold": row.is_held_by_user,
    }


# By kind of edit: its command, and what Slurm shows then.
EDITS: dict[str, tuple[str, object]] = {
    "ReqNodeList": ("update JobId={} ReqNodeList=n3", ("n3",)),
    "ExcNodeList": ("update JobId={} ExcNodeList=n1,n3", ("n1", "n3")),
    "Features": ("update JobId={} Features=v100|p100", "v100|p100"),
    "Nice": ("update JobId={} Nice=700", 700),
    "TimeLimit": ("update JobId={} TimeLimit=77", 77 * 60.0),
    "hold": ("uhold {}", True),
}


def test_no_edit_of_an_owner_is_lost(site: Site) -> None:
    """While hadard steers in rounds of a second, and when all is given back."""
    site.occupy(**dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), "gpu:4"))
    site.occupy(n6="gpu:v100:2,gpu:k80:2")
    site.start(mode="steer", round_seconds=1, policy="hadar")
    rates = {"v100": 20.0, "p100": 10.0}
    jobs = [site.train(rates, steps=steps, gpus=2) for steps in range(600, 0, -50)]
    site.until_rounds(2)
    made = list(zip(jobs, cycle(EDITS), strict=False))
    for job, name in made:
        command, value = EDITS[name]
        done = site.run(["scontrol", *command.format(job).split()])
        assert done.returncode == 0, done.stderr
        assert shown(site, job)[name] == value
    site.until_rounds(3)
    # Nodes that hadard excludes beside the owner's narrow only what it may use.
    for job, name in made:
        if name not in ("Nice", "TimeLimit", "ExcNodeList"):
            assert shown(site, job)[name] == EDITS[name][1], site.told(job)
    left = next(job for job, name in made if name == "ExcNodeList")
    assert site.run([*HADAR, "leave", left]).returncode == 0
    site.until_rounds(2)
    assert shown(site, left)["ExcNodeList"] == ("n1", "n3")
    site.hadard.stop()
    config = str(site.hadard.directory / "hadar.yaml")
    released = site.run([*HADAR, "release", "--config", config, "--json"])
    assert released.returncode == 0, released.stderr
    json.loads(released.stdout)
    for job, name in made:
        assert shown(site, job)[name] == EDITS[name][1], (name, site.told(job))
