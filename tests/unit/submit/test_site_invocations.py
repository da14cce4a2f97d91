"""What sites document for GPU jobs: hadard places it, or one line says why not. No Slurm runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from integration.invocations import INVOCATIONS
from site_invocations import FEATURES, GPUS, PARTITIONS, SITE_INVOCATIONS, SiteInvocation

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.submit.call import call_for
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.request import parse_words

# The least share of the invocations that ask for GPUs which hadard places: raise it, never lower.
SHARE = 0.90
# Prints each line of ROWS in the format of -o.
SINFO = """#!/bin/sh
for format; do :; done
exec awk -F '\\t' -v format="$format" '{
  line = format
  gsub("%N", $1, line); gsub("%P", $2, line); gsub("%G", $3, line); gsub("%[bf]", $4, line)
  gsub("%L", "1:00:00", line); gsub("%l", "7-00:00:00", line); print line
}' "$ROWS"
"""


@pytest.fixture(autouse=True)
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test-bed as sinfo shows it, and a living hadard that steers in each partition."""
    rows = [
        (node, f"{name}*" if name == "main" else name, gres_of(node), FEATURES[node])
        for name, nodes in PARTITIONS.items()
        for node in nodes
    ]
    (tmp_path / "rows").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "sinfo").write_text(SINFO)
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("ROWS", str(tmp_path / "rows"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    until_s = time.time() + 600
    write_heartbeat(tmp_path, Heartbeat(1, "c", until_s, "/spool", steered=("", *PARTITIONS)))


def gres_of(node: str) -> str:
    return ",".join(f"gpu:{name}:{count}" for name, count in GPUS[node].items())


def call_of(call: SiteInvocation, run_dir: Path) -> Call:
    """Return what hadar-sbatch makes of an invocation."""
    request = parse_words([*call.words, "--wrap=true"], call.environment)
    return call_for(request, {"HADAR_RUN_DIR": str(run_dir)}, is_parsable=False)


def name_of(call: SiteInvocation) -> str:
    return f"{call.site.partition(' ')[0]}-{'_'.join(call.words)}"[:80]


@pytest.mark.parametrize("call", SITE_INVOCATIONS, ids=name_of)
def test_what_a_site_documents_is_managed_or_has_its_reason(
    call: SiteInvocation, tmp_path: Path
) -> None:
    """The job is described as large as Slurm makes it, or one line has the declared reason."""
    made = call_of(call, tmp_path)
    assert made.decision.taken == call.is_managed, made.decision.line
    assert "\n" not in made.decision.line
    if call.is_managed:
        assert made.description is not None
        assert made.description.gpus == call.gpus, made.decision.line
    else:
        assert call.left in made.decision.why


def test_the_drop_in_test_s_invocations_are_among_them() -> None:
    """Those that ask for GPUs are declared beside the sites' own."""
    declared = {(c.words, *c.environment) for c in SITE_INVOCATIONS if c.site == "drop-in test"}
    wraps = "--wrap="
    asking = {
        (tuple(w for w in call.words if not w.startswith(wraps)), *call.environment)
        for call in INVOCATIONS
        if parse_words([*call.words], dict(call.environment)).gpus
    }
    assert declared == asking


def test_nearly_all_that_ask_for_gpus_are_managed(tmp_path: Path) -> None:
    """Of the sites' invocations and those of the drop-in test; a share that may only rise."""
    made = [(call, call_of(call, tmp_path).decision) for call in SITE_INVOCATIONS]
    left = [f"{decision.why}: {call.line}" for call, decision in made if not decision.taken]
    assert len(made) >= 100
    assert 1 - len(left) / len(made) >= SHARE, "\n".join(left)
