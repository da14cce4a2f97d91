"""The shipped alert rules and dashboard are valid and use existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse
from web_journals import NOW_S, a_job, a_line, an_action, write

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.pulse import Pulse

ROOT = Path(__file__).parents[3]
RULES = ROOT / "slurm_conf" / "prometheus-alerts.yaml"
DASHBOARD = ROOT / "slurm_conf" / "grafana-dashboard.json"
ALERTS = {
    "HadarDaemonGone",
    "HadarProblem",
    "HadarNoPlan",
    "HadarChangesFail",
    "HadarJobsLeftOut",
    "HadarRoundsStopped",
    "HadarJournalUnreadable",
    "HadarClusterUnseen",
    "HadarActionsRefused",
    "HadarClaimsOff",
}


@pytest.fixture
def samples(tmp_path: Path) -> dict[str, dict[str, set[str]]]:
    """Return the values of every label of every sample of a busy daemon."""
    path = tmp_path / "journal.jsonl"
    found: dict[str, dict[str, set[str]]] = {}
    with Follower(path) as follower:
        actions = [
            an_action(do, "1", "n1:V100:1", status)
            for do in ("start", "stop", "renew")
            for status in ("done", "refused")
        ]
        jobs = {"1": a_job(), "2": a_job("n2:K80:1", rates={"k80": 2.0})}
        credit = {"times": 5.0, "speeds_off": 3.0, "jobs": 2, "at_s": NOW_S}
        more = {"expired": 1, "averages": 0, "credits": {"eve": credit}}
        write(path, a_line(0, jobs, actions=actions, **more))
        follower.poll()
        pulse = Pulse(tmp_path)
        write_heartbeat(tmp_path, Heartbeat(1, "toy", NOW_S + 30.0, str(tmp_path)))
        pulse.poll()
        text = exposition(follower, "", NOW_S, pulse)[0].decode()
    for family in parse(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, word in sample.labels.items():
                labels.setdefault(name, set()).add(word)
    return found


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _dashboard() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return tree


def _expressions() -> Iterator[str]:
    for rule in _rules():
        yield rule["expr"]
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in _dashboard()["templating"]["list"]:
        yield variable.get("definition", "")


def test_every_metric_named_is_one_that_there_is(
    samples: dict[str, dict[str, set[str]]],
) -> None:
    """Metrics and label values of the rules and the dashboard exist."""
    named = {name for text in _expressions() for name in re.findall(r"hadar_\w+", text)}
    assert named
    assert named - set(samples) == set()
    for text in _expressions():
        for name, selector in re.findall(r"(hadar_\w+)\{([^}]*)\}", text):
            for label, word in re.findall(r'(\w+)!?="([^"$]*)"', selector):
                assert word in samples[name][label], text


def test_grouping_is_by_labels_that_there_are(samples: dict[str, dict[str, set[str]]]) -> None:
    """`sum by (x)` uses only labels that exist."""
    # Prometheus adds the last two.
    labels = {label for found in samples.values() for label in found} | {"instance", "job"}
    for text in _expressions():
        for group in re.findall(r"by \(([^)]*)\)", text):
            assert {word.strip() for word in group.split(",")} <= labels


def test_there_are_ten_alerts_that_say_what_to_do() -> None:
    """Each has an expression, a duration, a severity, a summary and a description."""
    assert {rule["alert"] for rule in _rules()} == ALERTS
    for rule in _rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_prometheus_takes_the_rules() -> None:
    """promtool, if installed, accepts the rules."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    subprocess.run([promtool, "check", "rules", str(RULES)], check=True, capture_output=True)


def test_the_dashboard_has_what_grafana_needs() -> None:
    """Panels have unique ids, do not overlap, and use a variable as data source."""
    tree = _dashboard()
    panels = tree["panels"]
    assert tree["title"] == "Hadar"
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
