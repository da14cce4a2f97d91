"""The configuration file of hadard: YAML, checked as a whole, wrong keys named with their line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hadar_slurm.errors import ConfigError

# Written out because configuration lies below policies; a test holds it to their table.
PolicyName = Literal[
    "hadar",
    "hadar-paper",
    "hadare",
    "gavel-max-min",
    "gavel-makespan",
    "gavel-max-sum",
    "gavel-ftf",
    "gavel-fifo",
    "tiresias",
    "hare-offline",
    "hlas",
    "e-las",
    "a-srpt",
    "sampling",
    "yarn-cs",
    "srsf",
    "las",
    "slurm",
]

ModeName = Literal["observe", "advise", "enforce"]

DEFAULT_PATH = Path("/etc/hadar/hadar.yaml")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SolverConfig(_Section):
    """Limits of one solve: seconds, and relative distance from the optimum."""

    time_limit_s: float = Field(default=5.0, gt=0)
    gap: float = Field(default=1e-3, ge=0, lt=1)


class Config(_Section):
    """Everything hadard can be told; times in seconds, directories absolute.

    `mode` is how far hadard goes with jobs, `partitions` names those where it differs.
    `throughputs` is a table of the site's own, in the form of the shipped one. `spool_dir` is
    hadard's own and all nodes must see it: jobs report in `reports` there, and forked ones are told
    their shares in `assignments_dir`, by default `assignments` there. A journal of
    `journal_megabytes` is put aside, and `journal_files` old ones are kept.
    """

    policy: PolicyName = "hadar"
    utility: Literal["throughput", "jct", "ftf"] = "throughput"
    round_seconds: float = Field(default=360.0, gt=0)
    poll_seconds: float = Field(default=5.0, gt=0)
    restart_cost_seconds: float = Field(default=30.0, ge=0)
    grace_seconds: float = Field(default=60.0, gt=0)
    pin_timeout_seconds: float = Field(default=60.0, gt=0)
    command_timeout_seconds: float = Field(default=25.0, gt=0)
    alive_seconds: float = Field(default=30.0, gt=0)
    mode: ModeName = "observe"
    partitions: dict[str, ModeName] = Field(default_factory=dict)
    adapter: Literal["auto", "pyslurm", "command-line"] = "auto"
    solver: SolverConfig = SolverConfig()
    throughputs: Path | None = None
    slurm_conf: Path | None = None
    run_dir: Path = Path("/run/hadar")
    spool_dir: Path = Path("/var/spool/hadar")
    assignments_dir: Path | None = None
    state_dir: Path = Path("/var/lib/hadar")
    disable_file: Path = Path("/etc/hadar/disabled")
    journal: Path = Path("/var/log/hadar/journal.jsonl")
    journal_megabytes: float = Field(default=100.0, gt=0)
    journal_files: int = Field(default=5, ge=1)

    @property
    def reports(self) -> Path:
        """Return where users' directories of reports lie, side by side."""
        return self.spool_dir / "reports"

    @property
    def assignments(self) -> Path:
        """Return where forked jobs are told their shares."""
        return self.assignments_dir or self.spool_dir / "assignments"


def load_config(path: Path) -> Config:
    """Return the configuration in a file; raises ConfigError naming line, key and remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path))


def parse_config(text: str, origin: str) -> Config:
    """Return the configuration in `text`; `origin` names it in errors."""
    try:
        tree = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2020-13-45 looks like a date
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return Config()
    if not isinstance(tree, dict):
        raise ConfigError(f"{origin}: expected keys and values, such as `round_seconds: 360`")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = [
            f"{origin}:{_line(root, fault['loc'])}: {_sentence(fault['loc'], fault)}"
            for fault in error.errors()
        ]
        raise ConfigError("; ".join(faults)) from error


def _sentence(place: tuple[int | str, ...], fault: object) -> str:
    assert isinstance(fault, dict)
    key = ".".join(map(str, place))
    if fault["type"] != "extra_forbidden":
        return f"{key}: {fault['msg']}, not {fault['input']!r}"
    section = SolverConfig if len(place) > 1 else Config
    near = difflib.get_close_matches(str(place[-1]), section.model_fields, n=1, cutoff=0.0)
    return f"unknown key {key!r}; the nearest known one is {near[0]!r}"


def _line(root: yaml.Node | None, place: tuple[int | str, ...]) -> int:
    """Return the line, counted from 1, of the key at `place`."""
    node, line = root, 1
    for step in place:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == str(step):
                node, line = value, key.start_mark.line + 1
                break
    return line
