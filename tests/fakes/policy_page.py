"""The policy in docs/writing-a-policy.md, and the wheel of its package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-policy.md"
NAME = "first-come"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def source() -> str:
    """Return the source of the policy's module."""
    return "\n\n".join(_blocks("python"))


def install(directory: Path) -> Path:
    """Install the wheel of the page's package, and return the directory for PYTHONPATH.

    The wheel is written directly, since a build backend may have to be downloaded.
    """
    (text,) = _blocks("toml")
    project = tomllib.loads(text)["project"]
    module, version = project["name"].replace("-", "_"), project["version"]
    points = project["entry-points"]["hadar_slurm.policies"]
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": source(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[hadar_slurm.policies]\n"
        + "".join(f"{name} = {value}\n" for name, value in points.items()),
        f"{info}/RECORD": "",
    }
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    target = directory / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheel], check=True, capture_output=True)
    return target
