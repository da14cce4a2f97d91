"""What the runs of few_data.py came to, and the section of README.md on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from statistics import mean
from typing import Any

from figures import STOPPED, Record, cells, compared

DATE = "2026-11-26"
ONE, CHOICE, DECAY = "one node", "choice", ", weight decay"
SAME_TIME = "one node, steps of the same time"
INTERVALS_S = (60.0, 20.0)
REMEDIES = (DECAY, STOPPED, DECAY + STOPPED)

Pairs = Sequence[Mapping[str, Any]]
# A paragraph, or the rows of a table.
Block = str | list[list[str]]


def copies_named(interval_s: float) -> str:
    """Return the name of five copies with an interval in seconds."""
    return f"copies, {interval_s:.0f} s"


COPIES = tuple(map(copies_named, INTERVALS_S))
# Kinds of comparisons, of which each is one variant less another.
SAME_REMEDIES = tuple((name + remedy, ONE + remedy) for name, remedy in product(COPIES, REMEDIES))
AGAINST_REMEDIES = tuple((name, ONE + remedy) for name, remedy in product(COPIES, REMEDIES))
WITHOUT = tuple((name, ONE) for name in COPIES)
ONE_NODE = (*((ONE + remedy, ONE) for remedy in REMEDIES), (SAME_TIME, ONE))


def results(records: Iterable[Record]) -> dict[str, Any]:
    """Return means of all variants, and differences by seed of those that are compared."""
    judged = [record for record in records if record["name"] != CHOICE]
    return compared(judged, (*SAME_REMEDIES, *AGAINST_REMEDIES, *WITHOUT, *ONE_NODE))


def finding(records: Sequence[Record]) -> str:
    """Return what becomes of the claim, in a sentence; nothing without runs."""
    pairs = _of(results(records), SAME_REMEDIES)
    if not pairs:
        return ""
    is_held = all(each[key] == "better" for each in pairs for key in _FINDINGS.values())
    return (
        f"With few data and many epochs it is **{'' if is_held else 'not '}reproduced beyond "
        f"weight decay and early stopping**: with the same remedies on both sides {_both(pairs)} "
        "([below](#few-data-and-many-epochs))."
    )


def section(records: Sequence[Record]) -> list[Block]:
    """Return the paragraphs and tables on few data, what speaks against copies first."""
    found = results(records)
    if not _of(found, SAME_REMEDIES):
        return [_NOT_RUN]
    kinds = (
        ("Five copies and one node with the same remedies, copies less one node", SAME_REMEDIES),
        ("Five copies without a remedy beside one node with one", AGAINST_REMEDIES),
        ("Neither with a remedy", WITHOUT),
    )
    return [
        *(f"* {words}: {_both(pairs)}." for words, kind in kinds if (pairs := _of(found, kind))),
        _CAVEAT,
        _SETUP.format(
            trainings=len(records),
            minutes=sum(record["cpu_s"] for record in records) / 60,
            date=DATE,
            chosen="; ".join(_choices(records)),
        ),
        _differences(found, (*SAME_REMEDIES, *AGAINST_REMEDIES, *WITHOUT)),
        "What one node gains by the remedies, and by fewer steps:",
        _differences(found, ONE_NODE),
        "Means over seeds, and the steps at which the models stopped early had been trained:",
        _levels(records, found),
    ]


def _of(found: Mapping[str, Any], which: Iterable[tuple[str, str]]) -> Pairs:
    names = set(which)
    return [pair for pair in found["pairs"] if (pair["name"], pair["against"]) in names]


_FINDINGS = {"loss": "finding", "accuracy": "accuracy_finding"}


def _both(pairs: Pairs) -> str:
    """Return how often loss and accuracy are worse, the same and better."""
    words = []
    for figure, key in _FINDINGS.items():
        kinds = ("worse", "no different", "better", "too few seeds")
        counts = {kind: sum(pair[key] == kind for pair in pairs) for kind in kinds}
        told = ", ".join(f"{kind} in {count}" for kind, count in counts.items() if count)
        words.append(f"{figure} is {told} of {len(pairs)}")
    return ", ".join(words)


def _choices(records: Iterable[Record]) -> list[str]:
    """Return which weight decay was chosen for each optimiser, and from what."""
    losses: dict[str, dict[float, list[float]]] = {}
    for record in records:
        if record["name"] == CHOICE:
            run = record["run"]
            of = losses.setdefault(run["optimiser"], {})
            of.setdefault(run["decay"], []).append(record["validation"][-1][1])
    return [
        f"{min(of, key=lambda decay: mean(of[decay])):g} for {optimiser}, of "
        + ", ".join(f"{decay:g} ({mean(each):.3f})" for decay, each in of.items())
        for optimiser, of in losses.items()
    ]


def _differences(found: Mapping[str, Any], which: Sequence[tuple[str, str]]) -> Block:
    """Return a row for each comparison, the highest difference of losses first."""
    names = list(found["means"])
    rows = []
    for name, against in which:
        pairs = {pair["cell"]: pair for pair in _of(found, [(name, against)])}
        if pairs:
            shown = [_marked(pairs[cell]) if cell in pairs else ["", ""] for cell in names]
            loss = mean(pair["loss"][0] for pair in pairs.values())
            rows.append((loss, [name, against, *chain.from_iterable(shown)]))
    rows.sort(key=lambda row: -row[0])
    head = [f"{figure}, {name}" for name in names for figure in ("loss", "accuracy")]
    return [["", "less", *head], *(row for _, row in rows)]


def _marked(pair: Mapping[str, Any]) -> list[str]:
    """Return the differences of loss and accuracy, marked where they are better or worse."""
    signs = {"better": " ▼", "worse": " ▲"}
    accuracy_signs = {"better": " ▲", "worse": " ▼"}
    (loss, spread), (accuracy, accuracy_spread) = pair["loss"], pair["accuracy"]
    return [
        f"{loss:+.3f} ± {spread:.3f}{signs.get(pair['finding'], '')}",
        f"{100 * accuracy:+.1f} ± {100 * accuracy_spread:.1f} %"
        + accuracy_signs.get(pair["accuracy_finding"], ""),
    ]


def _levels(records: Iterable[Record], found: Mapping[str, Any]) -> Block:
    rows = [["task, optimiser", "", "loss", "accuracy", "steps"]]
    by_cell = cells(record for record in records if record["name"] != CHOICE)
    for cell, names in found["means"].items():
        for name, each in names.items():
            runs = by_cell[cell][name].values()
            is_early = name.endswith(STOPPED)
            steps = mean(
                run["stopped"][0] if is_early else run["run"]["total_steps"] for run in runs
            )
            (loss, spread), (accuracy, accuracy_spread) = each["loss"], each["accuracy"]
            shown = [
                f"{loss:.3f} ± {spread:.3f}",
                f"{100 * accuracy:.1f} ± {100 * accuracy_spread:.1f} %",
            ]
            rows.append([cell, name, *shown, f"{steps:,.0f}"])
    return rows


_NOT_RUN = (
    "Whether copies generalise better there than one node with weight decay or early stopping "
    "([few_data.py](few_data.py): 2,048 images, 64 epochs, five seeds) is not measured yet."
)
_CAVEAT = (
    "Measured with sgd, one network and small generated images only. The weight decay is chosen by "
    "loss, which costs accuracy: lower losses are here in large part less confident answers."
)
_SETUP = (
    "{trainings} trainings ({minutes:.1f} CPU minutes), {date}, on the same machine, each a line "
    "of [few_data.jsonl](few_data.jsonl): 2,048 of the images above, others for each seed, 64 "
    "epochs (4,096 steps in batches of 32, the same schedule), a network of two dense layers with "
    "BatchNorm (15,000 parameters), which learns them by heart. One run trains all seeds at once, "
    "stacked as one network ([few_task.py](few_task.py)): the order of samples is the same for all "
    "seeds; the samples, the first parameters and what is learnt are not. 2,000 held-out images "
    "judge. 1,000 others choose the step at which a training is *stopped early* (the lowest loss "
    "on them at the end of an interval: 64 steps on one node, 64 and 192 on copies with intervals "
    "of 20 and 60 s), and the weight decay (the lowest mean loss on them at one node's last step, "
    "with two seeds that do not judge): {chosen}. Copies have the weight decay of one node. They "
    "are those of mode `averaged`; synchronous copies have the result of one node up to rounding, "
    "and are not run. In the tables ± is the standard deviation over five seeds, and a mark (▼ a "
    "lower, ▲ a higher figure) means more than two standard errors; the highest differences of "
    "loss come first."
)
