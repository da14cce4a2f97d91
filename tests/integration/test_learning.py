"""hadar learn: from Slurm's history to the size of a live job, which hadar explain gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration.site import HADAR, Site, eventually

pytestmark = pytest.mark.slurm

HEADING = "JobID|User|JobName|Submit|Start|End|ElapsedRaw|AllocTRES|State|WorkDir|SubmitLine"
NUMBER, ELAPSED_S, LIMIT_S = 30, 600, 36_000


def write_history(path: Path, user: str) -> None:
    """Write jobs to each of which a tool gave another name, and one that still runs."""
    lines = [HEADING]
    for number in range(1, NUMBER + 2):
        begin_s = 1_750_000_000 + 1000 * number
        end = "Unknown" if number > NUMBER else str(begin_s + ELAPSED_S)
        state = "RUNNING" if number > NUMBER else "COMPLETED"
        name = f"parsl.fit.block-{number}.{begin_s}.25"
        lines.append(
            f"{900_000 + number}|{user}|{name}|{begin_s}|{begin_s}|{end}|{ELAPSED_S}|"
            f"cpu=1,gres/gpu=1,gres/gpu:v100=1,node=1|{state}|/home|sbatch -J {name} a.sh | b"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_explain_gives_the_learned_size_of_a_live_job_and_its_origin(site: Site) -> None:
    """A history is learned once, and the next job of that work is short whatever its limit says."""
    site.start(policy="hadar", round_seconds=1)
    # Its GPUs are taken, so that the job waits.
    site.occupy(
        n1="gpu:4", n2="gpu:4", n3="gpu:4", n4="gpu:4", n5="gpu:4", n6="gpu:v100:2,gpu:k80:2"
    )
    script = site.script("wait", "sleep 600")
    name = "parsl.fit.block-77.1760000000.5"
    job = site.submit(f"--job-name={name}", f"--time={LIMIT_S // 60}", "--gpus=1", script)
    config = str(site.hadard.directory / "hadar.yaml")

    def explained() -> str:
        done = site.run([*HADAR, "explain", job, "--config", config])
        assert done.returncode == 0, done.stderr
        return done.stdout

    eventually(lambda: any(job in line["waiting"] for line in site.lines()[-1:]), site.told)
    assert "learned" not in explained()
    before = site.seen(job)["steps"]

    path = site.directory / "history.sacct"
    write_history(path, site.queue()[job].user)
    for new in (NUMBER, 0):
        done = site.run([*HADAR, "learn", str(path), "--config", config, "--json"])
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["jobs"], told["new"], told["workloads"]) == (NUMBER, new, 1)
    eventually(lambda: site.seen(job)["steps"] < before / 3, explained)
    assert told["coverage"].keys() == {"beyond_q50", "beyond_q75", "beyond_q90"}
    shares = [line["beliefs"] for line in site.lines() if "beliefs" in line]
    assert shares[-1]["jobs"] == NUMBER
    assert round(told["coverage"]["beyond_q90"], 3) == round(shares[-1]["beyond_q90"], 3)
    text = f"its size is learned, from {NUMBER} ended jobs of job:parsl.fit on 1 GPU"
    assert text in explained()
    shown = site.run([*HADAR, "speeds", "show", "--config", config, "--json"])
    (row,) = [row for row in json.loads(shown.stdout)["ended"] if row["jobs"] == NUMBER]
    assert (row["workload"], row["median_s"]) == ("job:parsl.fit", ELAPSED_S)


def test_a_history_that_is_none_says_what_is_expected(site: Site) -> None:
    """Without accounting, and with a file of another form, the error names the remedy."""
    site.start(policy="hadar", round_seconds=1)
    config = str(site.hadard.directory / "hadar.yaml")
    done = site.run([*HADAR, "learn", "--config", config])
    assert done.returncode != 0
    assert "give a file" in done.stderr
    path = site.directory / "other.trace"
    path.write_text("no history\n", encoding="utf-8")
    done = site.run([*HADAR, "learn", str(path), "--config", config])
    assert done.returncode != 0
    assert "sacct -P" in done.stderr
