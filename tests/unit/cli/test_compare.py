"""hadar compare: tiny comparisons, wrong options, and interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from histories import MODERN_CLUSTER, modern_history

from hadar_slurm.cli.main import app
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.traces.adopters import as_movable
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_trace
from hadar_slurm.policies.registry import make_policy

# A3C makes 7.1758 steps/s on a V100 and 3.4388 on a K80.
# Far above every expected duration, for heavily loaded machines.
LIMIT_S = 300.0
JOB = "A3C\tpython3 train.py\ta3c\t--steps\t0\t{steps}\t1\t1\t-1\t{arrival}\n"
CLUSTER = ("--cluster", "1xv100,1xk80")


def compare(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Return status, output and errors of `hadar compare`."""
    monkeypatch.setattr(sys, "argv", ["hadar", "compare", *words])
    with pytest.raises(SystemExit) as end:
        app()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "few.trace"
    jobs = [JOB.format(steps=7176 * (1 + n % 3), arrival=300 * n) for n in range(5)]
    path.write_text("".join(jobs), encoding="utf-8")
    return path


def test_a_tiny_comparison(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two policies at two loads give a table for each load, three files and four cells."""
    output = trace.parent / "out"
    words = [str(trace), *CLUSTER, "--policy", "srsf,las", "--load", "60,120"]
    words += ["--output", str(output)]
    status, out, err = compare(words, monkeypatch, capsys)
    assert status == 0
    for part in ("few at 60 % load: 5 jobs on 1xv100,1xk80", "restart 30 s", "srsf", "las"):
        assert part in out
    for name in ("compare.csv", "compare.json", "report.html"):
        assert f"{name}: {output / name}" in err
    assert len(list((output / "cells").glob("*.json"))) == 4
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "few: effect of the load" in page
    assert "hadar compare" in page


def test_without_matplotlib_the_page_has_no_pictures(trace: Path) -> None:
    """One line says how to install matplotlib; the page has its tables, but no pictures."""
    hidden = (
        f"import faulthandler, sys; faulthandler.dump_traceback_later({LIMIT_S - 10});"
        "sys.modules['matplotlib'] = None; from hadar_slurm.cli.main import app; app()"
    )
    words = ["compare", str(trace), *CLUSTER, "--policy", "srsf", "--load", "60,120"]
    done = subprocess.run(
        [sys.executable, "-c", hidden, *words, "--output", str(trace.parent / "out")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr.count("pictures need matplotlib: pip install 'hadar_slurm[plots]'") == 1
    assert "few at 60 % load: 5 jobs on 1xv100,1xk80" in done.stdout
    page = (trace.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 2
    assert "<figure>" not in page
    assert "Jobs on each GPU" not in page


def test_json_is_for_programs(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json prints one object; a second call runs nothing and prints the same runs."""
    words = [str(trace), *CLUSTER, "--policy", "srsf", "--first", "3", "--rules", "hadar,gavel"]
    words += ["--output", str(trace.parent / "out"), "--json"]
    first = compare(words, monkeypatch, capsys)
    again = compare(words, monkeypatch, capsys)
    tree = json.loads(first[1])
    assert [(run["jobs"], run["rules"], run["restart"]) for run in tree["runs"]] == [
        (3, "hadar", "30"),
        (3, "gavel", "0"),
    ]
    assert json.loads(again[1])["runs"] == tree["runs"]
    assert "2 of 2 runs needed no run of their own" in again[2]


def test_a_generated_workload_has_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed is a separate run, and the table has their mean."""
    words = ["generate:gavel5", "--cluster", "4xv100,4xk80", "--policy", "srsf", "--seed", "0,1"]
    status, out, _ = compare([*words, "--output", str(tmp_path)], monkeypatch, capsys)
    assert status == 0
    assert "gavel5: 5 jobs on 4xv100,4xk80, hadar rules, restart 30 s, mean of 2 seeds" in out
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2


def test_adoption_says_who_gains_and_who_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each share has a row, each user one in a second table, and both are in the JSON."""
    path = tmp_path / "modern.sacct"
    path.write_text(modern_history(30, users=4), encoding="utf-8")
    words = [str(path), "--cluster", MODERN_CLUSTER, "--policy", "srsf", "--adoption", "50,100"]
    words += ["--seed", "1,2", "--output", str(tmp_path / "out")]
    status, out, _ = compare(words, monkeypatch, capsys)
    assert status == 0
    for part in (
        "adoption of srsf",
        "adoption of srsf by user",
        "user3",
        "Marked with *",
        "Seed 1",
    ):
        assert part in out
    assert "srsf (sizes learned, 0 % movable, 50 % of users beside slurm)" in out
    tree = json.loads(compare([*words, "--json"], monkeypatch, capsys)[1])
    found = [
        (each["percent"], each["seed"], each["adopters"]["users"]) for each in tree["adoption"]
    ]
    assert found == [(50, 1, 2), (100, 1, 4), (50, 2, 2), (100, 2, 4)]
    assert [each["others"]["gain"] is None for each in tree["adoption"]] == [False, True] * 2
    assert {each["trace"] for each in tree["gpu_speeds"]} == {"modern"}
    without = tmp_path / "anonymous.sacct"
    without.write_text(path.read_text("utf-8").replace("|User|", "|Ghost|"), encoding="utf-8")
    status, _, err = compare([str(without), *words[1:]], monkeypatch, capsys)
    assert (status, "anonymous does not have users" in " ".join(err.split())) == (2, True)


def test_others_write_as_the_plain_slurms_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a run of its own without adopters, beside which the shares stand."""
    path = tmp_path / "modern.sacct"
    path.write_text(modern_history(30, users=4), encoding="utf-8")
    words = [str(path), "--cluster", MODERN_CLUSTER, "--adoption", "50", "--json"]
    words += ["--policy", "slurm,srsf,slurm:list:look", "--output", str(tmp_path / "out")]
    tree = json.loads(compare(words, monkeypatch, capsys)[1])
    runs = [(run["bare_policy"], run["adoption"], run["beside"]) for run in tree["runs"]]
    assert runs == [
        (policy, share, beside)
        for beside in ("slurm", "slurm:list:look")
        for policy, share in ((beside, 0.0), ("srsf", 50.0))
    ]
    times = {run["bare_policy"]: run["mean_jct_s"] for run in tree["runs"]}
    for each in tree["adoption"]:
        assert each["all"]["mean_jct_before_s"] == pytest.approx(times[each["beside"]], abs=0.01)


def test_generality_takes_lists_of_workloads(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory's workload is played beside the generated ones; page and JSON have the ratios."""
    entry = f"- {{traces: [{trace.name}], family: ours, cluster: '1xv100,1xk80'}}"
    (trace.parent / "workloads.yaml").write_text(entry, encoding="utf-8")
    words = [
        "--scenario",
        "generality",
        str(trace.parent),
        "--policy",
        "e-las,srsf",
        "--first",
        "9",
    ]
    words += ["--load", "70", "--seed", "2", "--output", str(trace.parent / "out")]
    status, out, _ = compare(words, monkeypatch, capsys)
    assert status == 0
    for said in ("Where e-las loses", "e-las over all workloads", "ours: few", "sweeps9 at 70 %"):
        assert said in out
    page = (trace.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert "mean JCT h over that of the best peer" in page
    tree = json.loads(compare([*words, "--json"], monkeypatch, capsys)[1])
    assert len(tree["runs"]) == 10
    assert [w["family"] for w in tree["generality"]["workloads"]] == [
        "hadar", "gavel", "sweeps", "bursts", "ours",
    ]  # fmt: skip


def test_jobs_that_never_fit_are_told_or_left_out(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that never fits is an error with file and line; --leave-out-unfit counts it."""
    text = trace.read_text(encoding="utf-8")
    trace.write_text(text.replace("\t1\t1\t-1\t300\n", "\t4\t1\t-1\t300\n"), encoding="utf-8")
    words = [str(trace), *CLUSTER, "--policy", "srsf", "--output", str(trace.parent / "out")]
    status, _, err = compare(words, monkeypatch, capsys)
    assert status == 2
    assert f"{trace}:2: job 1: no nodes hold its gang of 4 GPUs" in err
    status, out, err = compare([*words, "--leave-out-unfit"], monkeypatch, capsys)
    assert status == 0
    assert "1 left out" in err
    assert "few: 4 jobs" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give traces, or a scenario with --scenario, and not both"),
        (["{trace}", "--scenario", "hadar480"], "and not both"),
        (["{trace}", "--scenario", "generality"], "few.trace': expected a list of workloads"),
        (
            ["--scenario", "mine"],
            "--scenario 'mine': expected one of hadar480, hadare-mixes, hadare-even",
        ),
        (["{trace}", "--policy", "srsf,best"], "--policy 'best': expected one of "),
        (["{trace}", "--rules", "mine"], "--rules 'mine': expected one of hadar, gavel"),
        (["{trace}", "--load", "70,x"], "--load 'x': expected a number"),
        (["{trace}", "--load", "0"], "--load 0: expected 1 per cent or more"),
        (["{trace}", "--first", "1", "--load", "70"], "--load 70: all jobs arrive at once"),
        (["{trace}", "--seed", "1.5"], "--seed 1.5: expected whole numbers"),
        (["{trace}", "--seed", "1"], "--seed: only generated workloads, --limits, --adop"),
        (["{trace}", "--adoption", "30"], "few does not have users; give Slurm's history"),
        (
            ["{trace}", "--adoption", "0"],
            "--adoption 0: expected per cent, above 0 and at most 100",
        ),
        (["{trace}", "--adoption", "x"], "--adoption 'x': expected a number"),
        (["{trace}", "--adoption", "9", "--policy", "hadare"], "--adoption: hadare forks jobs"),
        (["{trace}", "--adoption", "9", "--policy", "slurm:gpus"], "slurm:gpus cannot be what all"),
        (["{trace}", "--adoption", "9", "--rules", "gavel"], "--adoption: only hadar's rules"),
        (["{trace}", "--leave-out", "100"], "--leave-out 100: expected per cent, 0 to less than"),
        (["--scenario", "liars", "--leave-out", "9"], "--leave-out: scenarios take none"),
        (["--scenario", "liars", "--adoption", "9"], "--adoption: scenarios take none"),
        (["{trace}", "--sizes", "long"], "--sizes 'long': expected one of oracle, limit, learned"),
        (["{trace}", "--sizes", "limit"], "--sizes limit: few has no time limits; give --limits"),
        (["{trace}", "--time-on"], "--time-on: few has no time limits; give --limits"),
        (["--scenario", "liars", "--time-on"], "--time-on: scenario liars has no time limits"),
        (["{trace}", "--limits", "x", "--sizes", "limit"], "--limits 'x': expected the median"),
        (["{trace}", "--history", "{trace}"], "it is not used; give --sizes learned"),
        (["--scenario", "liars", "--sizes", "prior"], "scenario liars has sizes of its own"),
        (["{trace}", "--first", "0"], "--first 0: expected a whole number, 1 or more"),
        (["{trace}", "--restart-seconds", "0,x"], "--restart-seconds: restart cost 'x'"),
        (["{trace}", "--round-seconds", "0"], "--round-seconds 0: expected a number above 0"),
        (["{trace}", "--jobs-at-once", "0"], "--jobs-at-once 0: expected a whole number"),
        (["{trace}", "--copies", "0"], "--copies 0: expected a whole number, 1 or more"),
        (["{trace}", "--aggregation-seconds", "-1"], "--aggregation-seconds -1: expected"),
        (["{trace}", "--cluster", "v100"], "cluster 'v100': expected COUNTxTYPE"),
        (["{trace}", "--output", "/dev/null/x"], "--output /dev/null/x: Not a directory"),
        (["/no.trace"], "/no.trace: cannot be read"),
        (["generate:mine9"], "'generate:mine9': expected a generator and a number of jobs"),
        (["{trace}", "--gpu-speeds", "a100"], "--gpu-speeds: 'a100': expected TYPE=SPEED"),
        (["{trace}", "--throughputs", "/no.json"], "/no.json: cannot be read"),
    ],
)
def test_a_wrong_word_is_told_with_its_value(
    words: list[str],
    said: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong option ends with status 2 and one line: option, value, and what is expected."""
    status, out, err = compare([w.format(trace=trace) for w in words], monkeypatch, capsys)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_sizes_are_compared_side_by_side(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy has a line for each source of sizes, and each seed draws other limits."""
    words = [str(trace), *CLUSTER, "--policy", "srsf", "--sizes", "limit,learned", "--json"]
    words += ["--limits", "5x,40%", "--seed", "1,2", "--history", "generate:hadar20"]
    words += ["--output", str(tmp_path / "out")]
    status, out, _ = compare(words, monkeypatch, capsys)
    assert status == 0
    found = [(run["policy"], run["seed"]) for run in json.loads(out)["runs"]]
    names = ("srsf (sizes limit)", "srsf (sizes learned)")
    assert sorted(found) == sorted((name, seed) for name in names for seed in (1, 2))


def test_kinds_of_hadar_stand_on_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is known and what can move are rows of one table; plain Slurm comes once, and first."""
    path = tmp_path / "modern.sacct"
    path.write_text(modern_history(20, users=4), encoding="utf-8")
    words = [str(path), "--cluster", MODERN_CLUSTER, "--policy", "hadar,slurm", "--json"]
    words += ["--output", str(tmp_path / "out")]
    status, out, _ = compare(
        [*words, "--sizes", "limit,learned", "--movable", "0,50"], monkeypatch, capsys
    )
    assert status == 0
    tree = json.loads(out)
    kinds = [
        f"hadar (sizes {size}, {share} % movable)"
        for size in ("limit", "learned")
        for share in (0, 50)
    ]
    assert [run["policy"] for run in tree["runs"]] == ["slurm", *kinds]
    assert [gain["policy"] for gain in tree["gains"]] == kinds
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 2  # the speeds assumed, and all runs
    # Jobs that are requeued lose what they have trained, unless they save.
    words[words.index("hadar,slurm")] = "slurm,slurm:preempt=requeue"
    others = json.loads(compare([*words, "--movable", "0,50"], monkeypatch, capsys)[1])
    assert [run["policy"] for run in others["runs"]] == [
        "slurm",
        "slurm:preempt=requeue (0 % movable)",
        "slurm:preempt=requeue (50 % movable)",
    ]
    words[words.index("slurm,slurm:preempt=requeue")] = "hadar,slurm"
    # By default the first of these days.
    first = json.loads(compare(words, monkeypatch, capsys)[1])
    assert [run["policy"] for run in first["runs"]] == ["slurm", kinds[2]]
    # Sizes are learned then, also from jobs before.
    status, out, _ = compare([*words, "--history", str(path)], monkeypatch, capsys)
    assert status == 0
    assert [run["policy"] for run in json.loads(out)["runs"]] == ["slurm", kinds[2]]


def test_seeds_without_some_jobs_give_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed leaves out other jobs, the same for all policies; each has a gain."""
    path = tmp_path / "modern.sacct"
    path.write_text(modern_history(30, users=4), encoding="utf-8")
    words = [str(path), "--cluster", MODERN_CLUSTER, "--policy", "hadar,slurm:list", "--json"]
    words += ["--leave-out", "20", "--seed", "1,2", "--output", str(tmp_path / "out")]
    status, out, _ = compare(words, monkeypatch, capsys)
    assert status == 0
    tree = json.loads(out)
    found = [(run["policy"].partition(" ")[0], run["jobs"], run["seed"]) for run in tree["runs"]]
    names = ("slurm:list", "hadar")
    assert sorted(found) == sorted((name, 24, seed) for name in names for seed in (1, 2))
    assert [run["recorded"]["jobs"] for run in tree["runs"]] == [24] * 4
    assert len({run["recorded"]["mean_jct_s"] for run in tree["runs"]}) == 2
    assert [gain["seed"] for gain in tree["gains"]] == [1, 2]
    cells = list((tmp_path / "out" / "cells").glob("*.json"))
    records = [json.loads(cell.read_text(encoding="utf-8")) for cell in cells]
    assert {tuple(r["users"]) for r in records if r["seed"] == 1} != {
        tuple(r["users"]) for r in records if r["seed"] == 2
    }
    assert len({tuple(r["users"]) for r in records}) == 2


@pytest.mark.parametrize("policy", ["slurm", "slurm:list:look"])
def test_plain_slurm_sees_no_sizes_where_jobs_have_limits(policy: str) -> None:
    """So that one run of it stands beside hadar with any: all of its figures are the same."""
    cluster = parse_cluster(MODERN_CLUSTER, gpus_per_node=4)
    trace = parse_trace(modern_history(60, gap_s=200.0), "made", read_table(None), cluster)
    runs = [
        run_experiment(
            as_movable(trace.jobs, share, seed=0),
            cluster,
            make_policy(policy),
            ExperimentSettings(sizes=sizes),
        ).jcts
        for sizes, share in (("oracle", 100.0), ("learned", 0.0), ("limit", 50.0))
    ]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_comparison_leaves_nothing_running(how: signal.Signals, tmp_path: Path) -> None:
    """Neither Ctrl-C nor a kill leaves a process; Ctrl-C prints the number of finished runs."""
    path = tmp_path / "long.trace"
    jobs = [JOB.format(steps=7176 * 400, arrival=60 * n) for n in range(300)]
    path.write_text("".join(jobs), encoding="utf-8")
    words = [str(path), *CLUSTER, "--policy", "srsf,las", "--jobs-at-once", "2"]
    words += ["--output", str(tmp_path / "out")]
    with subprocess.Popen(
        [sys.executable, "-m", "hadar_slurm.cli.main", "compare", *words],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        # The command, two processes of multiprocessing and one worker; the second is starting.
        _wait_for(lambda: len(_session(process.pid)) >= 4)
        os.kill(process.pid, how)
        said, _ = process.communicate(timeout=LIMIT_S)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "0 of 2 runs are in" in said
    _wait_for(lambda: not _session(process.pid))


def _wait_for(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def _session(pid: int) -> list[int]:
    """Return the processes of a session, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if entry.name.isdigit() and fields[3] == str(pid) and fields[0] != "Z":
            found.append(int(entry.name))
    return found
