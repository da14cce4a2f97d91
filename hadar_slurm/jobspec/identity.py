"""Which jobs are the same work, by what Slurm shows of them. Standard library only.

Jobs of the same work share measured throughputs, failures and durations. A job's name alone does
not say it: tools give each job a new name, and scripts that are named run.sh are in every project.
So a workload is a *family* and, where there is more to say, a *detail* in brackets. Of the name,

* what differs from run to run is left out: UUIDs, dates, times, hashes, process numbers, counters;
* the names that known tools make are read by their own rules (`_TOOLS`);
* a number that stands alone, as in `resnet-50`, is left out of the family and kept in the detail;
* a name that says nothing, as `run.sh` or `wrap`, is completed by the program and its configuration
  file, the directory, and the container.

Estimates of throughputs begin with jobs of the same family and detail and fall back to the family
(core/throughput_model.py); those of lengths take the same family and detail, and then all jobs of
the user with the same time limit (core/lengths/durations.py). Case does not matter for the family.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

# Prefix of the workload of jobs without a model; no model has it.
OF_A_JOB = "job:"
# Of a family and of a detail. Longer ones keep their beginning and a digest.
_MOST_OF_FAMILY, _MOST_OF_DETAIL = 56, 36

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_DAY = r"(?:19|20)[0-9]{2}[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"[0-2][0-9][-_.:h]?[0-5][0-9](?:[-_.:m]?[0-5][0-9](?:[.][0-9]+)?)?"
_MOMENT = re.compile(rf"(?<![0-9]){_DAY}(?:[-_.T ]{{1,2}}{_TIME}Z?)?(?![0-9])")
_SEPARATORS = re.compile(r"([^0-9A-Za-z]+)")
_HEX = re.compile(r"(?=.*[0-9])(?=.*[a-f])[0-9a-f]{7,}", re.IGNORECASE)
_COUNTERS = (
    "batch case chunk exp experiment fold id idx index iter iteration j job n no nr num part pid "
    "rank rep replica run sample seed shard split stage step t task test trial try worker"
)
_COUNTED = re.compile(rf"({'|'.join(_COUNTERS.split())})[0-9]+", re.IGNORECASE)
_COUNTER = frozenset(_COUNTERS.split())
# Letters and digits in turn, at least this often: no word.
_TURNS, _LEAST_RANDOM = 3, 6
_TURN = re.compile(r"(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])")

# Names that tools and habits give to any work. Some tools also name each script differently.
_OF_TOOLS = frozenset(("dask-worker", "submitit"))
_GENERIC = _OF_TOOLS | frozenset(
    """
    bash batch go interactive job jobscript launch main python python3 run runme sbatch
    script sh slurm start submission submit test wrap
    """.split()
)
_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".py")
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf", ".gin", ".mdp", ".inp")
_LAUNCHERS = re.compile(
    r"(?:bash|sh|env|exec|time|nice|srun|mpirun|mpiexec|torchrun|accelerate|launch|singularity|"
    r"apptainer|conda|python[0-9.]*|uv|run|poetry|deepspeed)"
)

# Names of known tools: the family is the first group, the detail the second. Parsl appends the
# block and the time (2026.10), Nextflow the task's tag (2019), ReFrame a hash of its parameters
# (4.10).
_TOOLS = (
    re.compile(r"(parsl\..+?)(?:\.block-[0-9]+)?\.[0-9]{9,}(?:\.[0-9]+)?()"),
    re.compile(r"(nf-[^(]+?)_?\(.*()"),
    re.compile(r"(rfm_.+)_([0-9a-f]{8})"),
)
# snakemake names all jobs of a run by its UUID; the rule is in the comment and in the command.
_RULE = re.compile(r"rule_(.+?)(?:_wildcards_.*)?")
_TARGET = re.compile(r"--target-jobs[ =]+['\"\\]*([A-Za-z0-9_]+):")


@dataclass(frozen=True, slots=True)
class Shown:
    """What Slurm shows of a job; "" where it shows nothing."""

    name: str = ""
    # The script with its arguments, or what --wrap was given.
    command: str = ""
    directory: str = ""
    container: str = ""
    comment: str = ""


@lru_cache(maxsize=16384)
def workload_of_shown(shown: Shown) -> str:
    """Return the workload of a job without a model, such as `job:train (in bert~3f2a)`."""
    family, detail = _of_name(shown)
    if _stem(family).lower() in _GENERIC or not family:
        family, detail = _of_program(family, shown)
    family = family.replace("(", "").replace(")", "").strip() or "job"
    found = f"{OF_A_JOB}{_short(family, _MOST_OF_FAMILY)}"
    return f"{found} ({_short(detail, _MOST_OF_DETAIL)})" if detail else found


def normalised(text: str) -> str:
    """Return a name without what differs from run to run."""
    return _kept(_MOMENT.sub("", _UUID.sub("", text)), keeps_numbers=True)


def _of_name(shown: Shown) -> tuple[str, str]:
    name = shown.name.strip()
    for tool in _TOOLS:
        if found := tool.fullmatch(name):
            return found[1].strip("_"), found[2]
    if _UUID.search(name) and (rule := _rule(shown)):
        return f"snakemake.{rule}", ""
    kept = normalised(name)
    family = _kept(kept, keeps_numbers=False)
    return (family, kept) if family and family != kept else (kept, "")


def _rule(shown: Shown) -> str:
    """Return the rule of a snakemake job; "" for any other."""
    if found := _RULE.fullmatch(shown.comment):
        return found[1]
    found = _TARGET.search(shown.command)
    return found[1] if found else ""


def _of_program(name: str, shown: Shown) -> tuple[str, str]:
    """Return family and detail of a job whose name says nothing."""
    program, config = _program(shown.command)
    is_named_by_tool = name in _OF_TOOLS
    tells = program and not is_named_by_tool and _stem(program).lower() not in _GENERIC
    family = program if tells else name or program
    parts = [config, _place(shown.directory)]
    if shown.container:
        parts.append(normalised(PurePosixPath(shown.container).name))
    return family, ", ".join(part for part in parts if part)


def _program(command: str) -> tuple[str, str]:
    """Return the program that a command runs, and its first configuration file."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    program, config = "", ""
    for word in words:
        if word.startswith("-") or "=" in word.partition("/")[0]:
            continue
        base = PurePosixPath(word).name
        if base.lower().endswith(_CONFIGS):
            config = config or normalised(_stem(base))
        elif not program and not _LAUNCHERS.fullmatch(base):
            program = normalised(base)
    return program, config


def _place(directory: str) -> str:
    """Return a short name of a directory, without the parts that differ from run to run."""
    parts = [normalised(part) for part in PurePosixPath(directory).parts if part != "/"]
    named = [part for part in parts if part]
    if not named:
        return ""
    return f"in {named[-1]}~{_digest('/'.join(named))}"


def _stem(name: str) -> str:
    for ending in (*_ENDINGS, *_CONFIGS):
        if name.lower().endswith(ending):
            return name[: -len(ending)].strip(".")
    return name


def _kept(text: str, *, keeps_numbers: bool) -> str:
    """Return a name without its volatile parts, and without numbers that stand alone."""
    pieces = _SEPARATORS.split(text)
    words: Sequence[str] = pieces[::2]
    found, before = "", ""
    for number, word in enumerate(words):
        kept = _word(word, before, keeps_numbers=keeps_numbers)
        if kept:
            separator = pieces[2 * number - 1] if number else ""
            found += (separator[:1] if found else "") + kept
        before = word
    return found


def _word(word: str, before: str, *, keeps_numbers: bool) -> str:
    """Return what is kept of a part of a name; `before` is the part before it."""
    if word.isdigit():
        is_power = int(word) & (int(word) - 1) == 0
        is_size = len(word) < 4 or (is_power and len(word) < 6)
        is_counter = before.lower() in _COUNTER or (word.startswith("0") and len(word) > 1)
        return word if keeps_numbers and is_size and not is_counter else ""
    if counted := _COUNTED.fullmatch(word):
        return counted[1]
    is_random = len(word) >= _LEAST_RANDOM and len(_TURN.findall(word)) >= _TURNS
    if _HEX.fullmatch(word) or is_random:
        return ""
    return re.sub(r"[0-9]{5,}", "", word)


def workload_name(model: str, batch_size: int | None) -> str:
    """Return the name a table of throughputs uses for a model at a batch size."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 5]}~{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:4]
