"""The package structure: small packages, no import cycle, and no import of the laboratory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from importlib.metadata import EntryPoint
from pathlib import Path

import grimp
import pytest
from fakes import policy_page

from hadar_slurm.errors import PolicyError
from hadar_slurm.policies import registry

ROOT = "hadar_slurm"
LARGEST_ROOM = 15

LOADED = """
import sys
{code}
print(*sorted(name for name in sys.modules if name.startswith({prefixes!r})), sep="\\n")
"""
FORBIDDEN = ("hadar_slurm.lab", "matplotlib")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    graph = grimp.build_graph(ROOT)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def test_no_room_has_more_than_fifteen_modules(imports: dict[str, set[str]]) -> None:
    """No package has more than 15 modules, without its __init__ and its packages."""
    packages = {name.rpartition(".")[0] for name in imports}
    rooms = Counter(name.rpartition(".")[0] for name in imports if name not in packages)
    assert {room: size for room, size in rooms.items() if size > LARGEST_ROOM} == {}


def test_no_module_and_no_room_is_in_a_circle(imports: dict[str, set[str]]) -> None:
    """Imports have no cycle, between modules or between the parts of a package."""
    list(TopologicalSorter(imports).static_order())
    packages = {name.rpartition(".")[0] for name in imports} - {""}
    for package in packages:
        known: defaultdict[str, set[str]] = defaultdict(set)
        for name, others in imports.items():
            for other in others:
                if name.startswith(f"{package}.") and other.startswith(f"{package}."):
                    one, two = (n.removeprefix(f"{package}.").split(".")[0] for n in (name, other))
                    known[one] |= {two} - {one}
        list(TopologicalSorter(known).static_order())


@pytest.mark.parametrize(
    "code",
    [
        "import hadar_slurm.daemon.main",
        "from hadar_slurm.policies.registry import make_policy; make_policy('hadar')",
    ],
)
def test_the_product_loads_nothing_of_the_laboratory(code: str) -> None:
    """Neither hadard nor its default policy imports the laboratory or matplotlib."""
    text = LOADED.format(code=code, prefixes=FORBIDDEN)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_policy_of_a_separate_wheel_runs_in_simulate(tmp_path: Path) -> None:
    """`hadar simulate` runs the policy of docs/writing-a-policy.md from a package of its own."""
    environment = {**os.environ, "PYTHONPATH": str(policy_page.install(tmp_path))}
    trace = tmp_path / "two.trace"
    trace.write_text("LM (batch size 80)\t\t\t\t0\t900\t1\t1\t-1\t0\n", encoding="utf-8")
    words = ["simulate", str(trace), "--cluster", "1xv100", "--policy", policy_page.NAME, "--json"]
    command = [sys.executable, "-m", "hadar_slurm.cli.main", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policy"] == policy_page.NAME


def test_a_policy_whose_package_is_broken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the policy and the object that cannot be loaded."""
    broken = EntryPoint("broken", "no_such_package:make", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [broken])
    with pytest.raises(PolicyError, match="policy broken: no_such_package:make cannot be loaded"):
        registry.make_policy("broken")


def test_a_policy_that_is_not_installed_is_named() -> None:
    """The error names a policy that no installed package registers."""
    with pytest.raises(PolicyError, match="policy gone: no installed package registers it"):
        registry.make_policy("gone")
