"""The configuration file of hadard: YAML, checked as a whole; errors name key and line.

Every number has bounds, listed in slurm_conf/hadar.yaml: wide enough for tests with rounds of a
second and for the slowest site, narrow enough to refuse a typing error such as 1e-9.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails

from hadar_slurm.core.moves import parse_level
from hadar_slurm.errors import ConfigError

# `hold` was called `enforce` before.
ModeName = Annotated[
    Literal["observe", "advise", "steer", "hold"],
    BeforeValidator(lambda name: "hold" if name == "enforce" else name),
]

DEFAULT_PATH = Path("/etc/hadar/hadar.yaml")
_DAY_S = 86400.0
# For commands that run no policy: `hadar release` must work when a site's policy is uninstalled.
_WITHOUT_POLICY = "without policy"


def _not_bool(value: object) -> object:
    """Refuse yes, no, true and false, which YAML reads as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _count(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("expected a whole number, 0 or more")
    return value


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("expected an absolute path, which begins with /")
    return path


def _known_policy(text: str, info: ValidationInfo) -> str:
    """Refuse a policy that no installed package registers, or hadar-paper with a wrong word."""
    names = entry_points(group="hadar_slurm.policies").names
    own = [f"hadar-paper:{utility}" for utility in ("throughput", "jct", "ftf")]
    if info.context == _WITHOUT_POLICY or text in (*names, *own):
        return text
    raise ValueError(f"expected one of {', '.join(sorted((*names, *own)))}")


def _moves_of(text: str) -> str:
    kind, equals, name = text.partition("=")
    if text != "default" and not (kind in ("partition", "qos", "account") and equals and name):
        raise ValueError("expected default, partition=NAME, qos=NAME or account=NAME")
    return text


LevelText = Annotated[str, AfterValidator(lambda text: parse_level(text) and text)]
MovesOf = Annotated[str, AfterValidator(_moves_of)]
PolicyName = Annotated[str, AfterValidator(_known_policy)]
Count = Annotated[int, BeforeValidator(_count)]
Number = Annotated[float, BeforeValidator(_not_bool)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SolverConfig(_Section):
    """Limits of one solve, in seconds."""

    time_limit_s: Number = Field(default=5.0, ge=0.01, le=3600)


class GpuTypeConfig(_Section):
    """What a site says of a GPU type: bandwidth in GB/s, memory in GB, capability as of CUDA."""

    memory_gb: Number | None = Field(default=None, ge=0.1, le=100_000)
    compute_capability: Number | None = Field(default=None, ge=0.1, le=1000)
    bandwidth_gb_s: Number | None = Field(default=None, ge=0.1, le=10_000_000)


Names = Annotated[tuple[str, ...], Field(min_length=1, max_length=10_000)]


class EnrolConfig(_Section):
    """Which jobs are enrolled: those that all given lists have."""

    partitions: Names | None = None
    qos: Names | None = None
    accounts: Names | None = None
    users: Names | None = None
    # The most jobs of an account that are enrolled at once, by account.
    account_jobs: dict[str, Count] = Field(default_factory=dict)


class Config(_Section):
    """The keys of hadar.yaml; times in seconds, paths absolute."""

    policy: PolicyName = "hadar"
    # How strictly users share under policy hadar: 0 not at all, 1 by shares alone.
    user_shares: Number = Field(default=0.2, ge=0, le=1)
    # The sizes of jobs whose steps are not given: learned from ended jobs, or their time limits.
    sizes: Literal["learned", "limit"] = "learned"
    # The GPU types of gangs that hadard does not place. Read by submit/call.py.
    typing: Literal["any", "list"] = "any"
    round_seconds: Number = Field(default=360.0, ge=0.1, le=_DAY_S)
    poll_seconds: Number = Field(default=5.0, ge=0.05, le=3600)
    restart_cost_seconds: Number = Field(default=30.0, ge=0, le=_DAY_S)
    grace_seconds: Number = Field(default=60.0, ge=0.1, le=_DAY_S)
    pin_timeout_seconds: Number = Field(default=60.0, ge=1, le=_DAY_S)
    command_timeout_seconds: Number = Field(default=25.0, ge=1, le=600)
    alive_seconds: Number = Field(default=30.0, ge=1, le=3600)
    mode: ModeName = "observe"
    # Modes of partitions that differ from `mode`.
    partitions: dict[str, ModeName] = Field(default_factory=dict)
    # Jobs that hadard steers although they were not submitted by hadar-sbatch.
    enrol: EnrolConfig = EnrolConfig()
    # By which of their owners' words running jobs may be moved (core/moves.py).
    moves: dict[MovesOf, LevelText] = Field(default_factory=dict)
    adapter: Literal["auto", "pyslurm", "command-line"] = "auto"
    solver: SolverConfig = SolverConfig()
    # A table in the form of the shipped one, which it replaces.
    throughputs: AbsolutePath | None = None
    # What the shipped table of GPU types lacks or has otherwise, by the site's names of types.
    gpu_types: dict[str, GpuTypeConfig] = Field(default_factory=dict)
    slurm_conf: AbsolutePath | None = None
    run_dir: AbsolutePath = Path("/run/hadar")
    # Owned by hadard, shared by all nodes: jobs write reports there.
    spool_dir: AbsolutePath = Path("/var/spool/hadar")
    # Where forked jobs read their shares; default `assignments` in `spool_dir`.
    assignments_dir: AbsolutePath | None = None
    state_dir: AbsolutePath = Path("/var/lib/hadar")
    disable_file: AbsolutePath = Path("/etc/hadar/disabled")
    journal: AbsolutePath = Path("/var/log/hadar/journal.jsonl")
    # The journal is rotated at this size.
    journal_megabytes: Number = Field(default=100.0, ge=0.01, le=100_000)
    journal_files: Annotated[int, BeforeValidator(_not_bool)] = Field(default=10, ge=1, le=1000)

    @property
    def own_gpu_types(self) -> dict[str, dict[str, float]]:
        """Return the given values of `gpu_types`."""
        return {k: given.model_dump(exclude_none=True) for k, given in self.gpu_types.items()}

    @property
    def enrol_lists(self) -> dict[str, frozenset[str]]:
        """Return the given lists of `enrol`."""
        given: dict[str, list[str]] = self.enrol.model_dump(
            exclude_none=True, exclude={"account_jobs"}
        )
        return {kind: frozenset(names) for kind, names in given.items()}

    @property
    def reports(self) -> Path:
        """Return the directory of the users' report directories."""
        return self.spool_dir / "reports"

    @property
    def assignments(self) -> Path:
        """Return the directory where forked jobs read their shares."""
        return self.assignments_dir or self.spool_dir / "assignments"


def load_config(path: Path, *, needs_policy: bool = True) -> Config:
    """Return the configuration in a file; raises ConfigError naming line, key and remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path), needs_policy=needs_policy)


def read_config(path: Path | None, *, needs_policy: bool = True) -> Config:
    """Return the configuration in `path`, else in DEFAULT_PATH, else the defaults.

    Without `needs_policy`, its policy need not be installed.
    """
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return Config() if path is None else load_config(path, needs_policy=needs_policy)


def parse_config(text: str, origin: str, *, needs_policy: bool = True) -> Config:
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
        context = None if needs_policy else _WITHOUT_POLICY
        # Keys of 0.2.0.
        if (word := tree.pop("utility", "")) and tree.get("policy") == "hadar-paper":
            tree["policy"] = f"hadar-paper:{word}"
        if isinstance(solver := tree.get("solver"), dict):
            solver.pop("gap", None)  # the relative gap, which was one too
        config = Config.model_validate(tree, context=context)
    except ValidationError as error:
        faults = (f"{origin}:{_line(root, f['loc'])}: {_sentence(f)}" for f in error.errors())
        raise ConfigError("; ".join(faults)) from error
    wrong = [f"{origin}:{_line(root, (key,))}: {key}: {text}" for key, text in _conflicts(config)]
    if wrong:
        raise ConfigError("; ".join(wrong))
    return config


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield keys whose values conflict, each with the remedy."""
    round_s, poll_s, alive_s = config.round_seconds, config.poll_seconds, config.alive_seconds
    named = config.model_fields_set
    if poll_s > round_s:
        fault = f"poll_seconds ({poll_s:g}) is above round_seconds ({round_s:g})"
        key = "poll_seconds" if "poll_seconds" in named else "round_seconds"
        yield key, f"{fault}: set poll_seconds to {round_s:g} or less"
    # If the key is left out, hadard uses four polls if that is more than the default.
    if "alive_seconds" in named and alive_s <= poll_s:
        fault = f"{alive_s:g} is not above poll_seconds ({poll_s:g})"
        yield "alive_seconds", f"{fault}: set it to {4 * poll_s:g} or more, or leave it out"


def _sentence(fault: ErrorDetails) -> str:
    place = fault["loc"]
    key = ".".join(map(str, place)).removesuffix(".[key]")
    sections: dict[object, type[_Section]] = {
        "solver": SolverConfig,
        "gpu_types": GpuTypeConfig,
        "enrol": EnrolConfig,
    }
    section = sections.get(place[0], Config) if len(place) > 1 else Config
    if fault["type"] in ("greater_than_equal", "less_than_equal"):
        bounds = section.model_fields[str(place[-1])].metadata
        least, most = (next(b for b in bounds if hasattr(b, name)) for name in ("ge", "le"))
        expected = f"expected a number from {least.ge:g} to {most.le:g}"
        return f"{key}: {expected}, not {fault['input']!r}"
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{key}: {message}, not {fault['input']!r}"
    near = difflib.get_close_matches(str(place[-1]), section.model_fields, n=1, cutoff=0.0)
    return f"unknown key {key!r}; the nearest known one is {near[0]!r}"


def _line(root: yaml.Node | None, place: tuple[int | str, ...]) -> int:
    """Return the line, counted from 1, of the key at `place`."""
    node, line = root, 1
    for step in place:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value == str(step):
                node, line = value, key.start_mark.line + 1
                break
    return line
