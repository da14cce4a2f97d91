"""The version is the same everywhere, and the files in .github are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hadar_slurm import __version__
from hadar_slurm.built_from import version
from hadar_slurm.cli.main import commands
from hadar_slurm.daemon import main

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def _tree(path: Path) -> dict[str, Any]:
    # The key `on` is a boolean in YAML 1.1; BaseLoader keeps it, and all else, as text.
    tree: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return tree


def test_commands_changelog_and_manual_pages_have_one_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands, the manual pages and the changelog name one version."""
    assert CliRunner().invoke(commands, ["--version"]).output == f"hadar {version()}\n"
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"hadard {version()}\n"
    pages = list((ROOT / "docs" / "man").glob("man*/*"))
    assert pages
    assert [p.name for p in pages if f'"hadar_slurm {__version__}"' not in p.read_text()] == []
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_continuous_integration_runs_every_check_on_both_releases_of_debian() -> None:
    """The workflow calls .ci/run in Debian 12 and 13, with a time limit above that of .ci/run."""
    tree = _tree(GITHUB / "workflows" / "ci.yml")
    assert {"push", "pull_request"} <= set(tree["on"])
    job = tree["jobs"]["check"]
    assert job["strategy"]["matrix"]["image"] == ["debian:12", "debian:13"]
    (step,) = (s["run"] for s in job["steps"] if ".ci/run" in s.get("run", ""))
    assert "${{ matrix.image }}" in step
    assert int(job["timeout-minutes"]) * 60 > 3580


def test_released_packages_of_debian_name_their_commit() -> None:
    """They are built in a container without git; Python's are built in the checkout."""
    steps = _tree(GITHUB / "workflows" / "release.yml")["jobs"]["debian"]["steps"]
    runs = [step.get("run", "") for step in steps]
    (build,) = (number for number, run in enumerate(runs) if "packaging/build-deb" in run)
    assert 'echo "$GITHUB_SHA" >hadar_slurm/_commit' in "".join(runs[:build])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_few_rights_and_name_versions(path: Path) -> None:
    """The token may read; only the job that publishes may write. Actions have a major version."""
    tree = _tree(path)
    assert tree["permissions"] == {"contents": "read"}
    for name, job in tree["jobs"].items():
        assert name == "publish" or "permissions" not in job
        assert 0 < int(job["timeout-minutes"]) <= 90
        for used in (step["uses"] for step in job["steps"] if "uses" in step):
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", used)
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_a_bug_report_asks_for_what_an_answer_needs() -> None:
    """The form asks for versions, status and journal; ids are unique, as GitHub demands."""
    folder = GITHUB / "ISSUE_TEMPLATE"
    for name in ("bug_report", "feature_request"):
        form = _tree(folder / f"{name}.yml")
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids))
        assert all(f["attributes"].get("label") for f in form["body"] if f["type"] != "markdown")
    text = (folder / "bug_report.yml").read_text(encoding="utf-8")
    for word in ("hadar --version", "scontrol --version", "hadar status --json", "journal.jsonl"):
        assert word in text
    (link,) = _tree(folder / "config.yml")["contact_links"]
    assert "SECURITY.md" in link["about"]
    assert set(link) == {"name", "url", "about"}
