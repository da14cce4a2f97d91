"""From a user's words to the exact sbatch call. Pure, standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Shape, uniform_shapes
from hadar_slurm.core.quantity import parse_count, parse_number
from hadar_slurm.core.throughput import ThroughputTable, workload_name
from hadar_slurm.errors import JobSpecError
from hadar_slurm.slurm.metadata import Description, encode, parse_shape
from hadar_slurm.submit.directives import read_directives
from hadar_slurm.submit.options import SbatchOption, split_options

PREFIX = "--hadar-"

USAGE = """\
usage: hadar-sbatch [--hadar-OPTION ...] [any sbatch option] script [args]

Submits with sbatch; where hadard is alive, the job waits for it to choose its GPUs.

  --hadar-model NAME          model in the throughput table, e.g. ResNet-50
  --hadar-batch-size N        its batch size
  --hadar-throughput T=R,...  instead of a model: steps/s of the whole gang on each GPU type,
                              e.g. v100=12.5,k80=1.3
  --hadar-steps N             training steps in all (required)
  --hadar-gang GANG           GPUs: 4 (any uniform layout) or 2x2 (GPUs per node x nodes); without
                              it the GPUs that sbatch's own options ask for, else 1
  --hadar-checkpoint yes|no   the job saves on USR1 and resumes, so it may be moved (default no)
  --hadar-restart-cost S      seconds from a move until it trains again (default: the site's)
  --hadar-help                this text

The same options may stand in the script on lines that begin with #HADAR; the command line wins.
Every other option is sbatch's and is passed on untouched."""


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed command line: our options, sbatch's, and the script with its arguments."""

    own: Mapping[str, str]
    options: Sequence[SbatchOption]
    script: Sequence[str]
    directives: Sequence[SbatchOption] = field(default_factory=tuple)

    def last(self, *names: str) -> str | None:
        """Return the value of the last of sbatch's options `names`; the command line wins."""
        given = [option for option in self.options if option.name in names]
        given = given or [option for option in self.directives if option.name in names]
        return (given[-1].value or "") if given else None


KNOWN = ("model", "batch-size", "throughput", "steps", "gang", "checkpoint", "restart-cost")


def parse_request(words: Sequence[str], read_script: Callable[[str], str]) -> Request:
    """Return the parsed command line; `read_script` gives a script's text, "" if unreadable."""
    own, rest = _take_own(words)
    options, script = split_options(rest)
    path = script[1] if script[:1] == ["--"] and len(script) > 1 else "".join(script[:1])
    text = read_script(path) if path else ""
    in_script, stray = _take_own(read_directives(text, "#HADAR"))
    if stray:
        raise JobSpecError(f"#HADAR {stray[0]}: only {PREFIX}... options may stand there")
    directives, _ = split_options(read_directives(text, "#SBATCH"))
    return Request({**in_script, **own}, options, script, directives)


def _take_own(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off our own options; they may stand anywhere before the script."""
    own: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith(PREFIX):
            options, script = split_options(words[position:])
            if not options:
                rest += script
                break
            first = next(option.words for option in options if option.words)
            rest += first
            position += len(first)
            continue
        name, equals, value = word[len(PREFIX) :].partition("=")
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.0)[0]
            raise JobSpecError(f"unknown option {PREFIX}{name}; the nearest is {PREFIX}{near}")
        if not equals:
            position += 1
            if position == len(words):
                raise JobSpecError(f"{word} needs a value")
            value = words[position]
        own[name] = value
        position += 1
    return own, rest


def describe(request: Request, table: ThroughputTable) -> Description:
    """Return what hadard is to know of the job; raises JobSpecError naming the wrong value."""
    own = request.own
    if "steps" not in own:
        raise JobSpecError(f"{PREFIX}steps is missing: how many training steps the job has in all")
    gpus, shape = _gang(request)
    wants = own.get("checkpoint", "no").lower()
    if wants not in ("yes", "no"):
        raise JobSpecError(f"{PREFIX}checkpoint {wants!r}: expected yes or no")
    cost = own.get("restart-cost")
    return Description(
        steps=_whole(own["steps"], "steps"),
        gpus=gpus,
        shape=shape,
        checkpoint=wants == "yes" and not _given(request, "no-requeue"),
        restart_cost_s=None if cost is None else _number(cost, "restart-cost"),
        comment=request.last("comment") or "",
        rates=_rates(own["throughput"]) if "throughput" in own else {},
        workload=_workload(own, table),
    )


def _workload(own: Mapping[str, str], table: ThroughputTable) -> str:
    if "throughput" in own:
        if "model" in own:
            raise JobSpecError(f"give {PREFIX}model or {PREFIX}throughput, not both")
        return ""
    if "model" not in own:
        raise JobSpecError(f"{PREFIX}model or {PREFIX}throughput is missing")
    size = own.get("batch-size")
    name = workload_name(own["model"], None if size is None else _whole(size, "batch-size"))
    known = {workload.lower(): workload for workload in table.workloads}
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.3)
        names = ", ".join(known[n] for n in near) or "hadar-sbatch --hadar-throughput"
        raise JobSpecError(f"{name!r} is not in the throughput table; near it: {names}")
    return known[name.lower()]


def _rates(text: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    for part in text.split(","):
        kind, equals, value = part.partition("=")
        if not (kind and equals):
            raise JobSpecError(f"{PREFIX}throughput {part!r}: expected TYPE=STEPS_PER_S")
        rates[kind.strip().lower()] = _number(value, "throughput")
    return rates


def _gang(request: Request) -> tuple[int, Shape | None]:
    text = request.own.get("gang")
    if text is None:
        return _gang_from_sbatch(request)
    if "x" in text.lower():
        shape = parse_shape(text)
        return shape.num_gpus, shape
    return _whole(text, "gang"), None


def _gang_from_sbatch(request: Request) -> tuple[int, Shape | None]:
    """Return the gang that sbatch's own options ask for, else a single GPU."""
    per_node = _count(request.last("gpus-per-node") or "") or _count_in_gres(request.last("gres"))
    if per_node is not None:
        nodes = _whole((request.last("nodes") or "1").split("-")[-1], "gang: --nodes")
        return per_node * nodes, Shape(nodes, per_node)
    in_all = _count(request.last("gpus") or "")
    if in_all is not None:
        return in_all, None
    for name in ("gpus-per-task", "gpus-per-socket"):
        if _given(request, name):
            raise JobSpecError(f"--{name} is given: say with {PREFIX}gang how many GPUs it makes")
    return 1, None


def _count(text: str) -> int | None:
    """Return the GPUs in `4`, `v100:4` or `v100:2,k80:2`; a type alone is one; None of nothing."""
    if not text:
        return None
    counts = [part.rsplit(":", 1)[-1] for part in text.split(",")]
    return sum(int(count) if count.isascii() and count.isdigit() else 1 for count in counts)


def _count_in_gres(text: str | None) -> int | None:
    """Return the GPUs in `gpu`, `gpu:4` or `gpu:v100:4,other:1`; None where there are none."""
    parts = [part for part in (text or "").split(",") if part.split(":")[0] == "gpu"]
    return _count(",".join(parts))


def _given(request: Request, *names: str) -> bool:
    return any(option.name in names for option in (*request.options, *request.directives))


def _whole(text: str, what: str) -> int:
    return parse_count(text, PREFIX + what, JobSpecError)


def _number(text: str, what: str) -> float:
    return parse_number(text, PREFIX + what, JobSpecError)


def check_fits(description: Description, cluster: Cluster) -> None:
    """Raise JobSpecError unless the cluster could hold the gang when nothing else runs."""
    kinds = {str(kind).lower(): str(kind) for kind in cluster.gpus_by_type}
    for kind in description.rates:
        if kind not in kinds:
            raise JobSpecError(
                f"GPU type {kind!r} is not in this cluster, which has {', '.join(kinds.values())}"
            )
    shapes = (description.shape,) if description.shape else uniform_shapes(description.gpus)
    most = [max(count for _, count in node.gpus) for node in cluster.nodes]
    for shape in shapes:
        if sum(count >= shape.gpus_per_node for count in most) >= shape.nodes:
            return
    layouts = ", ".join(str(shape) for shape in shapes)
    raise JobSpecError(
        f"no nodes of this cluster can hold the gang {layouts} (GPUs per node x nodes): it has "
        + ", ".join(f"{n} {kind}" for kind, n in cluster.gpus_by_type.items())
        + f" on {len(cluster.nodes)} nodes"
    )


def compose(request: Request, description: Description, *, is_held: bool) -> tuple[str, ...]:
    """Return the sbatch call: ours first where the user said nothing, then all of the user's."""
    # A job that its user holds is not ours to release.
    is_held = is_held and not _given(request, "hold")
    added = [f"--comment={encode(replace(description, is_held=is_held))}"]
    if is_held:
        added.append("--hold")
    if not _given(request, "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"):
        shape = description.shape
        if shape is None:
            added.append(f"--gpus={description.gpus}")
        else:
            added += [f"--nodes={shape.nodes}", f"--gpus-per-node={shape.gpus_per_node}"]
    if description.checkpoint:
        added += ["--requeue"]
        if not _given(request, "open-mode"):
            # A job that moves would otherwise empty its output at every restart.
            added.append("--open-mode=append")
    kept = [word for option in request.options if option.name != "comment" for word in option.words]
    return ("sbatch", *added, *kept, *request.script)


def without_hadar(request: Request) -> tuple[str, ...]:
    """Return the user's own sbatch call."""
    words = [word for option in request.options for word in option.words]
    return ("sbatch", *words, *request.script)
