"""The checks of progress, of owners' edits and of runs find violations, and nothing else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from chaos.constancy import changed_while_running, lost_edits, resizes
from chaos.invariants import EDITS, MOVING, STILL
from chaos.progress import Idling, Spells, stalls
from chaos.records import idle_gpus, sightings
from chaos.slurm_conf import Change
from chaos.test_invariants import DETAIL, FREE_JOB, HELD, RUNNING, a_past, a_sample, a_task
from chaos.workload import HOLD, Edit
from integration.site import Gpu


def rounds(*errors: str, every_s: float = 2.0) -> list[dict[str, Any]]:
    return [{"time_s": 100.0 + every_s * n, "error": error} for n, error in enumerate(errors)]


def test_rounds_that_go_on_failing_are_found() -> None:
    """A time without a successful round is found, unless a fault keeps rounds from succeeding."""
    failing = rounds("", *["KeyError: p100"] * 12, "")
    [finding] = stalls(failing, Spells(), (99.0, 130.0), 20.0)
    assert finding.invariant == MOVING
    assert "12 failed, the last by KeyError: p100" in finding.what
    assert not list(stalls(rounds("", "KeyError", "", ""), Spells(), (99.0, 110.0), 20.0))
    spells = Spells()
    spells.note(101.0, is_excused=True)
    spells.note(120.0, is_excused=False)
    assert not list(stalls(failing, spells, (99.0, 130.0), 20.0))


def test_no_rounds_at_all_are_found() -> None:
    """A hadard that lives and makes no round is found, at the end of a run as well."""
    assert [f.what for f in stalls([], Spells(), (100.0, 130.0), 20.0)] == [
        "no round succeeded for 30 s: none was made"
    ]
    assert list(stalls(rounds(""), Spells(), (100.0, 130.0), 20.0))
    spells = Spells()
    spells.note(100.0, is_excused=True)
    spells.close(125.0)
    assert not list(stalls(rounds(""), spells, (100.0, 130.0), 20.0))


def test_a_job_that_waits_beside_idle_gpus_is_found() -> None:
    """A job that hadard holds beside idle GPUs enough for it is found, and no other."""
    idle = {("n1", "v100"): 2}
    for job, task, free, is_found in (
        (HELD, a_task(), idle, True),
        (HELD, a_task(gpus=4), idle, False),
        (HELD, a_task(held_s=95.0), idle, False),
        (HELD, a_task(), {}, False),
        (HELD, a_task(edits={"ExcNodeList": Edit("n1", 90.0, 91.0)}), idle, False),
        (RUNNING, a_task(), idle, False),
    ):
        idling = Idling()
        assert not list(idling.add(a_sample(job, at_s=100.0), {"7": task}, free, 60.0))
        found = [f.invariant for f in idling.add(a_sample(job, at_s=161.0), {"7": task}, free, 60)]
        assert found == ([MOVING] if is_found else [])
    idling = Idling()
    for at_s, free in ((100.0, idle), (150.0, {}), (165.0, idle)):
        assert not list(idling.add(a_sample(HELD, at_s=at_s), {"7": a_task()}, free, 60.0))


@pytest.mark.parametrize(
    ("name", "value", "lost", "kept"),
    [
        ("ReqNodeList", "n1", {"requested_nodes": ""}, {"requested_nodes": "n1"}),
        ("ExcNodeList", "n2", {"excluded_nodes": "n1"}, {"excluded_nodes": "n[1-3]"}),
        ("Nice", "700", {"nice": "0"}, {"nice": "700"}),
        ("TimeLimit", "03:00:00", {"limit": "UNLIMITED"}, {"limit": "03:00:00"}),
        ("Features", "v100|k80", {"features": ""}, {"features": "v100|k80"}),
        ("QOS", "extra", {"qos": "normal"}, {"qos": "extra"}),
        (HOLD, "hold", {"priority": 7}, {"priority": 0}),
    ],
)
def test_an_owners_edit_that_is_gone_is_found(
    name: str, value: str, lost: dict[str, Any], kept: dict[str, Any]
) -> None:
    """A field that no longer shows its owner's value is found while the job waits."""
    tasks = {"7": a_task(edits={name: Edit(value, 104.0, 105.0)})}
    [finding] = lost_edits(a_sample(replace(FREE_JOB, **lost)), tasks)
    assert finding.invariant == EDITS
    assert finding.what.startswith(name)
    assert not list(lost_edits(a_sample(replace(FREE_JOB, **kept)), tasks))
    assert not list(lost_edits(a_sample(replace(FREE_JOB, **lost), at_s=104.5), tasks))
    assert not list(lost_edits(a_sample(replace(RUNNING, **lost)), tasks))


def test_an_owner_who_changes_the_nice_value_releases_the_job() -> None:
    """The hold of before is no longer an edit to keep: Slurm 22.05.8 takes it off."""
    task = a_task()
    task.note(HOLD, Edit("hold", 100.0, 101.0))
    task.note("Nice", Edit("700", 104.0, 105.0))
    assert task.edits.keys() == {"Nice"}


def test_what_hadard_borrows_is_given_back() -> None:
    """A field that hadard has borrowed after the edit is lost once hadard is gone."""
    tasks = {"7": a_task(edits={"Nice": Edit("700", 104.0, 105.0, may_be_lent=True)})}
    sample = a_sample(replace(FREE_JOB, nice="3"))
    assert not list(lost_edits(sample, tasks, is_gone=False))
    assert list(lost_edits(sample, tasks, is_gone=True))


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": frozenset({Gpu("n1", "v100", 0)})},
        {"gpus": frozenset({Gpu("n2", "v100", 0), Gpu("n2", "v100", 1)})},
        {"num_nodes": "2"},
        {"limit": "01:00:00"},
    ],
)
def test_a_run_that_is_changed_is_found(changed: dict[str, Any]) -> None:
    """A run whose GPUs, nodes or limit change is found; another run of the job may differ."""
    other = replace(RUNNING, **changed)
    [finding] = changed_while_running("7", a_past(RUNNING, other), a_task())
    assert finding.invariant == STILL
    assert not list(changed_while_running("7", a_past(RUNNING, HELD, other), a_task()))
    again = replace(other, restarts=1)
    assert not list(changed_while_running("7", a_past(RUNNING, again), a_task()))
    edited = a_task()
    edited.note("TimeLimit", Edit("01:00:00", 99.0, 100.0))
    edited.edits.clear()  # a later one was refused
    limited = replace(RUNNING, limit="01:00:00")
    assert not list(changed_while_running("7", a_past(RUNNING, limited), edited))
    retyped = replace(RUNNING, gpus=frozenset(replace(g, gpu_type="a") for g in RUNNING.gpus))
    assert not list(changed_while_running("7", a_past(RUNNING, retyped), a_task()))


ENDED_S = 1_700_000_000.0
ENDED = time.strftime(
    "JobId=7 JobState=COMPLETED EndTime=%Y-%m-%dT%H:%M:%S ", time.localtime(ENDED_S)
)


def test_a_resize_is_found() -> None:
    """A record of a resize and a line of slurmctld's are found; a run may end twice."""
    assert not list(resizes("Started JobId=7", f"{ENDED}\n{ENDED}", {}))
    for log, records in (
        ("", ENDED.replace("COMPLETED", "RESIZING")),
        ("[100] resizing JobId=7", ""),
    ):
        [finding] = resizes(log, records, {"7": [(ENDED_S + 2.0, ENDED_S + 3.0)]})
        assert (finding.invariant, finding.apart) == (STILL, "")


def test_a_resize_by_the_owner_is_counted_apart() -> None:
    """Slurm dates it in whole seconds."""
    records, task = ENDED.replace("COMPLETED", "RESIZING"), a_task()
    task.note("ReqNodeList", Edit("n1", ENDED_S + 0.4, ENDED_S + 0.8))
    [finding] = resizes("", records, {"7": task.spans_of("ReqNodeList")})
    assert finding.apart


def test_the_newer_fields_of_a_record_are_read() -> None:
    """What owners edit and what a run has is read."""
    line = f"{DETAIL} Nice=5 TimeLimit=03:00:00 Features=v100|k80 QOS=extra NumNodes=1"
    [seen] = sightings(line)
    assert (seen.nice, seen.limit, seen.features) == ("5", "03:00:00", "v100|k80")
    assert (seen.qos, seen.num_nodes) == ("extra", "1")


def test_idle_gpus_are_read() -> None:
    """GPUs are idle on nodes that start jobs, with and without types."""
    text = (
        "NodeName=n1 Gres=gpu:v100:4 GresUsed=gpu:v100:1(IDX:0) State=MIXED SlurmdStartTime=5\n"
        "NodeName=n2 Gres=gpu:v100:2,gpu:k80:2 GresUsed=gpu:v100:0(IDX:N/A),gpu:k80:2(IDX:2-3) "
        "State=MIXED SlurmdStartTime=5\n"
        "NodeName=n3 Gres=gpu:p100:4 GresUsed=gpu:p100:0(IDX:N/A) State=IDLE+DRAIN "
        "SlurmdStartTime=5\n"
        "NodeName=n4 Gres=gpu:p100:4 GresUsed=gpu:p100:0(IDX:N/A) State=IDLE "
        "SlurmdStartTime=None\n"
        "NodeName=n5 Gres=gpu:4 GresUsed=gpu:0 State=IDLE SlurmdStartTime=5\n"
    )
    assert idle_gpus(text) == {
        ("n1", "v100"): 3, ("n2", "v100"): 2, ("n2", "k80"): 0, ("n5", ""): 4
    }  # fmt: skip


CONF = "NodeName=n3 CPUs=8 Gres=gpu:v100:2,gpu:p100:2\nNodeName=n30 Gres=gpu:p100:4\n"
GRES = (
    "NodeName=n3 Name=gpu Type=v100 File=/g/n3-v100-[0-1]\n"
    "NodeName=n3 Name=gpu Type=p100 File=/g/n3-p100-[0-1]\n"
)


def test_a_node_is_changed_in_slurms_configuration() -> None:
    """A node is removed, renamed or given other GPUs, and all others stay as they are."""
    gone, renamed = Change("n3"), Change("n3", "c-0-3")
    assert gone.in_slurm_conf(CONF) == "NodeName=n30 Gres=gpu:p100:4\n"
    assert gone.in_gres_conf(GRES) == ""
    assert renamed.in_slurm_conf(CONF) == CONF.replace("n3 ", "c-0-3 ")
    assert renamed.in_gres_conf(GRES) == GRES.replace("n3 ", "c-0-3 ")
    for new, gres in (("new", "gpu:new:2"), ("", "gpu:2")):
        change = Change("n3", gpu_type="p100", new_type=new)
        assert change.in_slurm_conf(CONF) == CONF.replace("gpu:p100:2", gres)
        told = f"Type={new} " if new else ""
        assert change.in_gres_conf(GRES) == GRES.replace("Type=p100 ", told)
    assert [c.slurmd for c in (gone, renamed, Change("n3", gpu_type="a"))] == ["", "c-0-3", "n3"]
