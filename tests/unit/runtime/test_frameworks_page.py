"""docs/frameworks.md shows how few lines a script needs to train in copies."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "frameworks.md"


def test_a_script_becomes_a_job_in_copies_by_ten_lines_at_most() -> None:
    """Each diff adds at most ten lines, gives a valid program, and imports existing names."""
    diffs = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(diffs) == 3
    for diff in diffs:
        added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
        assert 0 < len(added) <= 10
        kept = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
        tree = ast.parse("\n".join(kept))
        ours = [
            (node.module, name.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hadar_slurm")
            for name in node.names
        ]
        assert ours
        for module, name in ours:
            path = ROOT.joinpath(*str(module).split(".")).with_suffix(".py")
            names = [getattr(each, "name", "") for each in ast.parse(path.read_text()).body]
            assert name in names
