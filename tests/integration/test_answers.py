"""hadar status and hadar explain with a real Slurm and a real hadard."""

from __future__ import annotations

import getpass
import json
import time
from typing import Any

import pytest
from builders import is_so, plan_of
from integration.site import HADAR, Site, eventually
from integration.test_forked import fork

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal.values import snapshot_of
from hadar_slurm.state.learned_file import FILE_NAME as PROFILE
from hadar_slurm.state.throughput_store import Profile


def told(site: Site, *words: str) -> dict[str, Any]:
    """Return the JSON output of a hadar command with the daemon's configuration."""
    config = str(site.hadard.directory / "hadar.yaml")
    done = site.run([*HADAR, *words, "--config", config, "--json"])
    assert done.returncode in (0, 1), done.stderr
    tree: dict[str, Any] = json.loads(done.stdout)
    return tree


def test_a_job_that_waits_is_told_why_when_and_what_would_change_it(site: Site) -> None:
    """`hadar explain` gives a held job's reason, choices and expected start, which is met."""
    site.start(policy="hadar", round_seconds=1)
    throughputs = {"v100": 10.0}
    first = [site.train(throughputs, steps=350, gpus=4, checkpoint="no") for _ in range(2)]
    site.until_running(*first)
    last = site.train(throughputs, steps=600, gpus=4, checkpoint="no")
    eventually(lambda: last in site.newest()["waiting"], lambda: site.told(*first, last))
    found = told(site, "explain", last)
    assert found["slurm"] == "PENDING JobHeldUser"
    answer = found["found"]
    line = next(line for line in site.lines() if line["time_s"] == answer["time_s"])
    assert answer["reason"] == line["waiting"][last]
    assert [choice["gpu_type"] for choice in answer["choices"]] == ["v100"]
    expected_s = answer["time_s"] + answer["expected"]["begins_in_s"]
    text = site.run(
        [*HADAR, "explain", last, "--config", str(site.hadard.directory / "hadar.yaml")]
    ).stdout
    assert f"job {last}: queued, 4 GPUs" in text
    assert "if no other jobs arrive, it starts in" in text
    site.until_running(last)
    began_s = next(action for action in site.lines() if _starts(action, last))["time_s"]
    # Slurm and hadard take some seconds from one job's end to the next one's start.
    assert -2 <= began_s - expected_s <= 15, (began_s, expected_s)
    answer = told(site, "explain", last)["found"]
    assert answer["reason"] == ""
    site.until_completed(*first, last)
    for line in site.lines():
        snapshot, plan = snapshot_of(line), plan_of(line)
        for job_id, why in plan.waiting:
            assert is_so(why, snapshot, plan, snapshot.by_id[job_id]), (line, job_id, why)


def _starts(line: dict[str, Any], job: str) -> bool:
    return any(
        action["do"] == "start" and action["job"] == job and action["status"] == "done"
        for action in line["actions"]
    )


def test_status_counts_what_slurm_shows(site: Site) -> None:
    """GPUs of plain jobs count as others, of managed jobs as ours, of a drained node as closed."""
    site.occupy(n5="gpu:3")
    site.runner.run(["scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"])
    site.start(round_seconds=1)
    job = site.train({"v100": 10.0}, steps=600, gpus=2)
    site.until_running(job)
    eventually(lambda: site.seen(job).get("phase") == "running", "seen")
    found = told(site, "status")
    assert found["alive"] is True
    assert site.hadard.process is not None
    assert found["pid"] == site.hadard.process.pid
    last = found["last"]
    states = ("total", "ours", "others", "free", "closed")
    counts = {
        gpu_type: tuple(use[state] for state in states) for gpu_type, use in last["gpus"].items()
    }
    assert counts == {
        "k80": (6, 0, 3, 3, 0),
        "p100": (8, 0, 0, 4, 4),
        "v100": (10, 2, 0, 8, 0),
    }
    assert last["jobs"]["running"] == 1
    site.hadard.stop()
    assert told(site, "status")["alive"] is False
    site.free(job)


def test_a_job_on_its_pin_is_pinned_and_an_ended_one_has_ended(site: Site) -> None:
    """`hadar explain` recognises pinned, running, ended, plain and unknown jobs.

    The pinned job is pending for lack of memory, not GPUs. It ends after hadard was killed.
    """
    fillers = [
        site.submit(f"--nodelist={node}", "--mem=8000", "--wrap=sleep 600", command=["sbatch"])
        for node in ("n1", "n2")
    ]
    site.occupy(n6="gpu:v100:2")
    site.until_running(*fillers)
    site.start(round_seconds=1)
    job = site.train({"v100": 50.0}, steps=600, gpus=4)

    def is_pinned() -> bool:
        found = told(site, "explain", job)["found"]
        return found is not None and found["state"] == "pinned"

    eventually(is_pinned, lambda: str(site.newest()["jobs"]))
    assert told(site, "status")["last"]["jobs"] == {"pinned": 1}
    site.free(*fillers)
    site.until_running(job)
    eventually(lambda: told(site, "explain", job)["found"]["state"] == "running", "running")
    site.kill(site.hadard)
    site.until_completed(job)
    (site.run_dir / "heartbeat.json").unlink()
    answer = told(site, "explain", job)
    assert (answer["answer"], answer["hadard_alive"]) == ("ended", False)
    assert (answer["ended"]["phase"], answer["slurm"]) == ("done", "COMPLETED None")
    assert site.seen(job).get("phase") == "running"
    plain = site.submit("--wrap=sleep 600", command=["sbatch"])
    assert told(site, "explain", plain)["answer"] == "left to Slurm"
    assert told(site, "explain", "99999")["answer"] == "unknown"
    assert told(site, "explain", "99999")["slurm"] == "no such job"


def test_a_user_sees_that_claims_count_for_more_until_it_is_forgotten(site: Site) -> None:
    """`explain` and `report` name the claim and what is planned; `speeds forget` ends it."""
    site.state_dir.mkdir(exist_ok=True)
    profile, user = Profile(site.state_dir / PROFILE), getpass.getuser()
    profile.credits.learn(user, 1000.0, 3000.0, time.time())
    profile.sync()
    assert profile.fault == ""
    site.start(round_seconds=1)
    job = site.train({"v100": 10.0}, steps=1500, gpus=2, checkpoint="no")
    site.until_running(job)

    def planned() -> tuple[int, float]:
        found = told(site, "explain", job)["found"] or {}
        return found.get("claimed_steps", 0), round(found.get("steps_total", 0), -1)

    eventually(lambda: planned() == (1500, 4500), lambda: str(planned()))
    eventually(lambda: site.seen(job).get("phase") == "running", "it runs")
    assert told(site, "explain", job)["found"]["believed_less"]["user"] == user
    claims = told(site, "report", "--no-replay")["claims"]
    assert claims["believed_less"][0]["steps_times"] == pytest.approx(3.0)
    assert [each["job"] for each in claims["replanned"]] == [job]
    # Beside the claims, what the job's own run has taught by now, which differs.
    shown = told(site, "speeds", "show", user)
    assert len(shown["claims"]) == 1
    assert told(site, "speeds", "forget", user)["deleted"] >= sum(map(len, shown.values()))
    eventually(lambda: planned() == (0, 1500), lambda: str(planned()))
    assert told(site, "report", "--no-replay")["claims"]["believed_less"] == []
    site.free(job)


def test_a_forked_job_is_told_with_all_its_copies(site: Site) -> None:
    """`hadar explain` shows all GPUs of a forked job, and each copy's gang and throughput."""
    site.settings["policy"] = "hadare"
    site.occupy(n2="gpu:4", n4="gpu:4", n5="gpu:4", n6="gpu:4")
    site.start(round_seconds=6)
    job = fork(site, 2, 3000)
    site.until_running(f"{job}_0", f"{job}_1")

    def forked() -> dict[str, Any]:
        found = told(site, "explain", job)["found"]
        return (found or {}).get("forked") or {"copies": []}

    def is_measured() -> bool:
        copies = forked()["copies"]
        return len(copies) == 2 and all(copy["steps_per_s"] for copy in copies)

    eventually(is_measured, lambda: str(forked()))
    found = told(site, "explain", job)["found"]
    assert (found["gpus"], found["gpus_held"]) == (2, 4)
    for copy in forked()["copies"]:
        task = copy["task"]
        assert task in (f"{job}_0", f"{job}_1")
        assert copy["gang"] == site.tree(JobId(site.queue()[task].raw_id))
    assert told(site, "explain", f"{job}_1")["found"]["job"] == job
    site.run(["scancel", job])
    eventually(lambda: told(site, "explain", job)["answer"] == "ended", "it has ended")
