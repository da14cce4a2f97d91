"""hadar simulate: a tiny trace, and errors in traces and options."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from histories import MODERN, MODERN_CLUSTER, modern_history

from hadar_slurm.cli.main import app
from hadar_slurm.journal.reader import read_journal

# A3C makes 7.1758 steps/s on a V100 and 3.4388 on a K80.
JOB = "A3C\tpython3 train.py\ta3c\t--steps\t0\t{steps}\t{gang}\t1\t-1\t{arrival}\n"


def job(steps: str = "7176", gang: str = "1", arrival: str = "0") -> str:
    return JOB.format(steps=steps, gang=gang, arrival=arrival)


def simulate(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Return status, output and errors of `hadar simulate`."""
    monkeypatch.setattr(sys, "argv", ["hadar", "simulate", *words])
    with pytest.raises(SystemExit) as end:
        app()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "two.trace"
    path.write_text(job() + job(steps="3439", arrival="50"), encoding="utf-8")
    return path


def test_a_tiny_trace(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs on two GPUs give the figures computed by hand, and a journal."""
    journal = trace.parent / "journal.jsonl"
    words = [str(trace), "--cluster", "1xv100,1xk80", "--journal", str(journal), "--json"]
    status, out, _ = simulate(words, monkeypatch, capsys)
    summary = json.loads(out)
    assert status == 0
    assert (summary["policy"], summary["jobs"], summary["completed"]) == ("hadar", 2, 2)
    # The first runs 1000 s on the V100; the second arrives at 50 s and runs 1000 s on the K80.
    assert summary["ttd_s"] == pytest.approx(1050.0, abs=1.0)
    assert summary["mean_jct_s"] == pytest.approx(1000.0, abs=1.0)
    assert summary["moves"] == 0
    lines = list(read_journal(journal))
    assert len(lines) == summary["rounds"]
    assert [line["plan"] for line in lines][-2] == {"1": {"0": {"n2": {"k80": 1}}}}


def test_the_table_is_for_people(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has times in hours and shares in per cent."""
    words = [str(trace), "--cluster", "1xv100", "--first", "1"]
    status, out, _ = simulate(words, monkeypatch, capsys)
    assert status == 0
    words_shown = " ".join(out.split())
    for part in ("1 of 1 jobs completed", "TTD │ 0.28 h │ 0.28 h │ 1.000", "v100 held │ 100.0%"):
        assert part in words_shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bad.trace: no job in it"),
        ("\n\n", "bad.trace: no job in it"),
        (
            job() + "A3C\tpython3 train.py\n",
            "bad.trace:2: 2 columns, expected 10, or 12 as Shockwave's, with tabs",
        ),
        (
            job().replace("\t", " "),
            "bad.trace:1: 1 columns, expected 10, or 12 as Shockwave's, with tabs",
        ),
        (job().strip() + "\t1\n", "bad.trace:1: 11 columns, expected 10"),
        (job(steps="-5"), "bad.trace:1: total steps '-5': expected a whole number, 1 or more"),
        (job(steps="0"), "bad.trace:1: total steps '0': expected a whole number, 1 or more"),
        (job(steps="many"), "bad.trace:1: total steps 'many': expected a whole number"),
        (job(steps="1.5"), "bad.trace:1: total steps '1.5': expected a whole number"),
        (job(gang="0"), "bad.trace:1: gang size '0': expected a whole number, 1 or more"),
        (job(gang="two"), "bad.trace:1: gang size 'two': expected a whole number"),
        (job(arrival="-1"), "bad.trace:1: arrival '-1': expected a number, 0 or more"),
        (job(arrival="nan"), "bad.trace:1: arrival 'nan': expected a number"),
        (job(arrival="inf"), "bad.trace:1: arrival 'inf': expected a number"),
        (
            job(arrival="10") + "\n" + job(arrival="5"),
            "bad.trace:3: arrival 5 s is before the line above's; sort the trace",
        ),
        (job().replace("A3C", "GPT-9"), "bad.trace:1: workload 'GPT-9' is not in the throughput"),
    ],
)
def test_a_wrong_trace_is_told_with_line_and_value(
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong trace ends with status 2 and one line: file, line, and the fault."""
    path = tmp_path / "bad.trace"
    path.write_text(text, encoding="utf-8")
    status, out, err = simulate([str(path)], monkeypatch, capsys)
    assert (status, out) == (2, "")
    assert err.startswith("hadar: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--policy", "gavel"],
            "--policy 'gavel': expected one of hadar, hadar-paper",
        ),
        (["--utility", "speed"], "--utility 'speed': expected one of throughput, jct, ftf"),
        (["--round-seconds", "0"], "--round-seconds 0: expected a number above 0"),
        (["--round-seconds", "inf"], "--round-seconds inf: expected a number above 0"),
        (["--restart-seconds", "-1"], "--restart-seconds: restart cost '-1': expected a number"),
        (["--restart-seconds", "inf"], "--restart-seconds: restart cost 'inf': expected a number"),
        (["--sizes", "small"], "--sizes 'small': expected one of oracle, limit, learned, prior"),
        (["--sizes", "limit"], "two.trace has no time limits; give --limits, such as 5x,40%"),
        (["--time-on"], "two.trace has no time limits; give --limits, such as 5x,40%"),
        (["--limits", "5"], "--limits '5': expected the median of limit over duration"),
        (["--first", "0"], "--first 0: expected a whole number, 1 or more"),
        (["--copies", "-1"], "--copies -1: expected a whole number, 1 or more"),
        (["--rules", "slurm"], "--rules 'slurm': expected one of hadar, gavel"),
        (["--node-mtbf-hours", "0"], "--node-mtbf-hours 0: expected a number above 0"),
        (["--cluster", "v100"], "cluster 'v100': expected COUNTxTYPE, such as 20xV100"),
        (["--cluster", "2xv100,"], "cluster '': expected COUNTxTYPE"),
        (["--cluster", "0xv100"], "cluster '0xv100': expected COUNTxTYPE"),
        (["--cluster", "-1xv100"], "cluster '-1xv100': expected COUNTxTYPE"),
        (["--gpus-per-node", "0"], "0 GPUs per node: expected 1 or more"),
        (["--throughputs", "/nowhere/table.json"], "/nowhere/table.json: cannot be read"),
        (["--journal", "/"], "--journal /: Is a directory"),
    ],
)
def test_a_wrong_option_is_told_with_its_value(
    words: list[str],
    said: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong option ends with status 2 and one line: option, value, and what is expected."""
    status, out, err = simulate([str(trace), *words], monkeypatch, capsys)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_missing_trace_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the path of a trace that cannot be read."""
    status, _, err = simulate([str(tmp_path / "no.trace")], monkeypatch, capsys)
    assert status == 2
    assert f"{tmp_path}/no.trace: cannot be read" in err


def test_a_job_that_never_fits_is_told_with_its_line(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that never fits is an error with its line; --leave-out-unfit runs the others."""
    trace.write_text(job() + job(gang="4"), encoding="utf-8")
    status, _, err = simulate([str(trace), "--cluster", "2xv100"], monkeypatch, capsys)
    assert status == 2
    assert f"{trace}:2" in err
    words = [str(trace), "--cluster", "2xv100", "--leave-out-unfit", "--json"]
    status, out, err = simulate(words, monkeypatch, capsys)
    assert (status, json.loads(out)["completed"]) == (0, 1)
    assert f"{trace}:2" in err


def test_failing_nodes_cost_time(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node failures make the same jobs take longer, and the seed determines the failures."""
    words = [str(trace), "--cluster", "1xv100", "--round-seconds", "60", "--json"]
    failing = [*words, "--node-mtbf-hours", "0.1", "--node-repair-hours", "0.1"]
    spans = [
        json.loads(simulate(chosen, monkeypatch, capsys)[1])["ttd_s"]
        for chosen in (words, failing, failing, [*failing, "--seed", "1"])
    ]
    assert spans[0] < spans[1] == spans[2] != spans[3]


def test_sizes_and_limits_change_what_the_policy_knows(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs train as before; only with limits above durations the shorter one may go last."""
    trace.write_text(job(steps="71760") + job(steps="7176") * 9, encoding="utf-8")
    words = [str(trace), "--cluster", "1xv100", "--policy", "srsf", "--json"]
    known = {
        sizes: json.loads(simulate([*words, *sizes.split()], monkeypatch, capsys)[1])
        for sizes in (
            "--sizes oracle",
            "--sizes limit --limits 5x,90%",
            "--sizes limit --limits 5x,90% --seed 3",
            "--sizes learned",
            "--sizes prior --limits 5x",
            "--sizes learned --history generate:hadar20",
        )
    }
    assert {found["completed"] for found in known.values()} == {10}
    jcts_s = [each["mean_jct_s"] for each in known.values()]
    oracle, limit, other_seed, learned, prior, _ = jcts_s
    assert oracle < min(limit, other_seed, learned, prior)
    assert limit != other_seed


def test_users_have_a_row_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    """A trace with users shows their slow-downs; one without users has no such row."""
    history = Path(__file__).resolve().parents[2] / "data" / "traces" / "history.sacct"
    words = [str(history), "--cluster", "8xv100,8xa100", "--gpu-speeds", "a100=2"]
    _, out, _ = simulate([*words, "--leave-out-unfit"], monkeypatch, capsys)
    assert "slow-down of users, mean / worst" in out
    _, out, _ = simulate([str(trace), "--cluster", "1xv100,1xk80"], monkeypatch, capsys)
    assert "slow-down of users" not in out


def test_a_modern_history_needs_no_speeds_and_says_what_it_assumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """H100, A100, L40S and T4 are known, and each ratio has its spread and origin."""
    path = tmp_path / "modern.sacct"
    path.write_text(modern_history(20), encoding="utf-8")
    words = [str(path), "--cluster", MODERN_CLUSTER, "--policy", "srsf"]
    status, out, err = simulate([*words, "--json"], monkeypatch, capsys)
    assert status == 0
    assert "unknown" not in err
    told = {each["gpu_type"]: each for each in json.loads(out)["gpu_speeds"]}
    assert told.keys() == set(MODERN)
    assert told["a100"]["origin"] == "measured"
    assert told["l40s"] == {
        "gpu_type": "l40s",
        "model": "",
        "relative_to": "V100",
        "ratio": pytest.approx(0.96),
        "spread": pytest.approx(1.49, abs=0.01),
        "origin": "bandwidth",
        "samples": 0,
        "basis": "v100",
    }
    _, out, _ = simulate(words, monkeypatch, capsys)
    assert "speed of GPU types relative to V100" in out
    assert "memory bandwidth, from a100" in " ".join(out.split())
    _, out, _ = simulate([*words, "--json", "--gpu-speeds", "l40s=2"], monkeypatch, capsys)
    told = {each["gpu_type"]: each for each in json.loads(out)["gpu_speeds"]}
    assert (told["l40s"]["ratio"], told["l40s"]["origin"]) == (2.0, "given")


def test_limits_end_runs_unless_they_are_adjusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A history's limits are those for the types on which its jobs ran."""
    path = tmp_path / "two.sacct"
    head = "JobID|Submit|ElapsedRaw|AllocTRES|State|Timelimit\n"
    row = "{}|2024-03-01T00:00:00|3000|gres/gpu:v100=1|COMPLETED|01:00:00\n"
    path.write_text(head + row.format(1) + row.format(2), encoding="utf-8")
    words = [str(path), "--cluster", "1xv100,1xk80", "--policy", "yarn-cs", "--sizes", "limit"]
    tree = json.loads(simulate([*words, "--json"], monkeypatch, capsys)[1])
    assert (tree["completed"], tree["killed"]) == (1, 1)
    assert (tree["ttd_s"], tree["killed_gpu_s"]) == (3600.0, 3600.0)
    _, out, _ = simulate(words, monkeypatch, capsys)
    assert "1, 54.5% of GPU time" in out
    assert "look shorter" in " ".join(out.split())
    tree = json.loads(simulate([*words, "--time-on", "--json"], monkeypatch, capsys)[1])
    assert (tree["completed"], tree["killed"]) == (2, 0)
    tree = json.loads(simulate([*words[:-2], "--json"], monkeypatch, capsys)[1])
    assert (tree["completed"], tree["killed"], tree["ttd_s"]) == (2, 0, 6000.0)
