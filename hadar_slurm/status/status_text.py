"""The text of hadar status, and hadard's heartbeat and last rounds from which it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hadar_slurm.config import Config
from hadar_slurm.engine.modes import Mode
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import Line
from hadar_slurm.journal.reader import read_last
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.status.health import Standing, standing_of, trouble_of
from hadar_slurm.status.status import ClusterStatus, current
from hadar_slurm.status.words import round_words, span, table_of

# Only the most frequent remarks are shown.
_MOST_REMARKS = 10
_MEANWHILE = "Until one succeeds, jobs go to plain Slurm and the reaper releases the held ones"


def last_lines(path: Path) -> tuple[list[Line], str]:
    """Return the last line of each mode, or why there is none."""
    try:
        lines = read_last(path, len(Mode))
    except OSError as error:
        return [], f"{path}: {error.strerror}"
    except ConfigError as error:  # damaged, or of another version
        return [], str(error)
    return lines, "" if lines else f"{path}: no round has been written yet"


def standing_by(life: Mapping[str, object], lines: Sequence[Line], now_s: float) -> Standing:
    """Return the age of the last round, and whether hadard is alive."""
    newest = max(current(lines), key=lambda line: float(line["time_s"]), default=None)
    return standing_of(newest, now_s, hadard_alive=bool(life["alive"]))


def life_of(config: Config, now_s: float) -> dict[str, Any]:
    """Return the contents of hadard's heartbeat."""
    beat = read_heartbeat(config.run_dir)
    is_alive = beat is not None and beat.is_fresh(now_s)
    is_running = beat is not None and beat.is_signed(now_s)
    # The empty name stands for jobs that name no partition; the default one is in the list too.
    enforces = [name for name in (beat.partitions or ()) if name] if beat else []
    return {
        "alive": is_alive,
        "running": is_running,
        "trouble": trouble_of(beat, now_s),
        "rounds": asdict(beat.rounds) if beat else None,
        "pid": beat.pid if beat else None,
        "cluster": beat.cluster if beat else "",
        "enforces": ["(all)"] if beat and beat.partitions is None else enforces,
        "disabled": config.disable_file.exists(),
        "run_dir": str(config.run_dir),
        "problems": dict(beat.problems) if beat else {},
    }


def warnings(life: Mapping[str, object], standing: Standing) -> list[str]:
    """Return warnings that the last round may be out of date."""
    age_s = standing.age_s
    if not life["alive"]:
        if trouble := life.get("trouble"):
            return [f"{trouble}. {_MEANWHILE}"]
        then = "" if age_s is None else f"; the following is from {span(age_s)} ago"
        return [f"hadard is not alive: no fresh heartbeat in {life['run_dir']}{then}"]
    if standing.is_stale and age_s is not None:
        return [f"hadard is alive, but the following is from its last round, {span(age_s)} ago"]
    return []


def problem_lines(life: Mapping[str, Any]) -> list[Text]:
    """Return hadard's current problems; its last known ones if it does not run."""
    word = "problem" if life.get("running") else "last known problem"
    return [Text(f"{word}: {problem}: {text}") for problem, text in life["problems"].items()]


def status_parts(
    life: Mapping[str, Any], found: ClusterStatus | None, fault: str, standing: Standing
) -> list[RenderableType]:
    """Return the lines and tables to print."""
    parts: list[RenderableType] = []
    if life["alive"]:
        where = f"in {', '.join(life['enforces'])}" if life["enforces"] else "nowhere"
        process = f"process {life['pid']}, cluster {life['cluster']}"
        parts.append(f"hadard is alive: {process}, places jobs {where}")
    parts += map(Text, warnings(life, standing))
    parts += problem_lines(life)
    if life["disabled"]:
        parts.append("the disable file exists: nothing is enforced")
    if found is None:
        return [*parts, Text(fault)]
    modes = f", {' and '.join(found.modes)}" if found.modes else ""
    when = round_words(found.round, found.time_s, standing.age_s)
    parts.append(f"{when}, {found.took_s:.2f} s, policy {found.policy}{modes}")
    parts += [Text(f"  incomplete: {error}") for error in found.errors]
    numbers = ("#GPUs", "#managed", "#unmanaged", "#free", "#closed", "#price")
    table = table_of("GPU type", *numbers)
    for gpu_type, use in found.gpus.items():
        price = found.prices.get(gpu_type)
        counts = (use.total, use.managed, use.others, use.free, use.closed)
        table.add_row(gpu_type, *map(str, counts), "" if price is None else f"{price:.3g}")
    parts.append(table)
    jobs = ", ".join(f"{count} {phase}" for phase, count in found.jobs.items())
    parts.append(f"jobs: {jobs or 'none'}")
    parts += [Text(f"  {count} wait: {reason}") for reason, count in found.waiting.items()]
    broken = list(found.left_out.items())
    parts += [Text(f"  job {job} is left out: {why}") for job, why in broken[:_MOST_REMARKS]]
    if len(broken) > _MOST_REMARKS:
        parts.append(f"  and {len(broken) - _MOST_REMARKS} more jobs are left out")
    said = list(found.remarks.items())
    parts += [Text(f"  {count} {remark}") for remark, count in said[:_MOST_REMARKS]]
    if len(said) > _MOST_REMARKS:
        parts.append(f"  and {len(said) - _MOST_REMARKS} more remarks: hadar top")
    return parts
