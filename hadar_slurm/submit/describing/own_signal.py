"""Whether a user's own words make a job movable, or its site's rules for preemption. Pure.

A signal before the end of the time limit is a warning to save, and `--requeue`, or a script that
requeues itself, says that the job may begin again. But many use a signal for something else, and
one that nothing handles ends the job: so what the script does on it has to be seen in the script.
Who asks for a partition or QOS whose jobs Slurm preempts by requeue has agreed to be requeued.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hadar_slurm.core.moves import MovedBy, OwnSignal, level_of, parse_signal, signal_name
from hadar_slurm.jobspec.description import Description
from hadar_slurm.submit.request import SbatchRequest
from hadar_slurm.submit.service import Service

# Options with which a job is not moved by its own signal, or hadard's own say how it is.
_ELSE = frozenset(("no-requeue", "array"))
_OWN = frozenset(("checkpoint", "copies"))
_REQUEUES = re.compile(r"\bscontrol\s+requeue\b")
# What submitit runs in a step: on its signal it saves, or begins again, and requeues the job.
_SUBMITIT = re.compile(r"\bsrun\b.* -m submitit\.core\._submit\b")
# What ends the run or passes a signal on to the program. HUP asks services to read files again.
_LEAVES = re.compile(r"\bexit\b|\bscancel\b|\bp?kill\b(?![^;\n|&]*\bHUP\b)")
_TRAP = re.compile(
    r"""(?:^|[;&|]|\bthen\b|\bdo\b)[ \t]*trap[ \t]+(?:--[ \t]+)?"""
    r"""('[^']*'|"(?:\\.|[^"\\])*"|[^\s'";]+)[ \t]+((?:[A-Za-z0-9]+[ \t]*)+)""",
    re.MULTILINE,
)
_FUNCTION = re.compile(
    r"(?:^|;)[ \t]*(?:function[ \t]+)?(\w+)[ \t]*(?:\(\))?\s*\{(.{,2000}?)(?:\n[ \t]*\}|;[ \t]*\})",
    re.DOTALL | re.MULTILINE,
)
_EXEC = re.compile(r"(?:^|[;&|])[ \t]*exec[ \t]", re.MULTILINE)
_SHELL = re.compile(r"#![ \t]*(?:/usr/bin/env[ \t]+)?\S*?\b(?:ba|da|k|z)?sh\b")
# Steps begin with it; the signal without `B:` reaches nothing else.
_STEPS = re.compile(r"\bsrun\b")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
# Longer scripts carry data, and are not searched beyond this.
_MOST_LETTERS = 50_000


def as_movable(description: Description, request: SbatchRequest, service: Service) -> Description:
    """Return the description with what else makes the job movable, where its site allows that."""
    given, beat = request.values, service.beat
    if beat is None or given.keys() & _ELSE or request.hadar_options.keys() & _OWN:
        return description
    partition, qos, account = (given.get(name, "") for name in ("partition", "qos", "account"))
    level = level_of(beat.moves, partition, qos, account)
    if level.by >= MovedBy.SIGNALS and (own := _own_signal(request)):
        return replace(description, signal=str(own))
    parts = [beat.preemptible.get(f"partition={name}") for name in partition.split(",")]
    found = [*filter(None, parts if None not in parts else [beat.preemptible.get(f"qos={qos}")])]
    if level.by < MovedBy.PREEMPTIBLE or not found:
        return description
    # Of several partitions it may get any: the longest times.
    grace_s, exempt_s = map(max, zip(*found, strict=True))
    signal = f"TERM@{grace_s:.0f}" if grace_s else ""
    if signal and parse_signal(signal) is None:
        return description
    return replace(description, exempt_s=exempt_s, restart_loss_s=level.most_s, signal=signal)


def _own_signal(request: SbatchRequest) -> OwnSignal | None:
    """Return the signal of --signal if the script leaves on it and the job comes back."""
    given, found = request.values, parse_signal(request.values.get("signal", ""))
    if found is None:
        return None
    text = _COMMENT.sub("", (given.get("wrap") or request.text)[:_MOST_LETTERS])
    comes_back = "requeue" in given or _REQUEUES.search(text) or _SUBMITIT.search(text)
    return found if comes_back and _heeds(request.text, text, found) else None


def _heeds(script: str, text: str, own: OwnSignal) -> bool:
    """Return whether a script, `text` without comments, saves or leaves on its signal."""
    if not own.to_batch:
        return _STEPS.search(text) is not None
    if script.startswith("#!") and not _SHELL.match(script):
        return "signal.signal(" in text and f"SIG{own.name}" in text
    handlers = [
        trap[1].strip("'\"")
        for trap in _TRAP.finditer(text)
        if own.name in map(signal_name, trap[2].split())
    ]
    return any(_leaves(handler, text) for handler in handlers)


def _leaves(handler: str, text: str) -> bool:
    """Return whether a handler, or a function that it calls, requeues, ends or passes on."""
    if not handler:
        # Ignored by the shell, and left to the program that takes its place.
        return _EXEC.search(text) is not None
    bodies = {found[1]: found[2] for found in _FUNCTION.finditer(text)}
    called = (bodies[name] for name in re.findall(r"\w+", handler) if name in bodies)
    whole = "\n".join((handler, *called))
    return bool(_REQUEUES.search(whole) or _LEAVES.search(whole))
