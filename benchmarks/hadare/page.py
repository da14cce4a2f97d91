"""Writes README.md beside it: tables and curves from the runs of quality.py and faults.py."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from curves import curves
from fault_figures import hits, summary
from few_page import Block, finding, section
from figures import AT_EQUAL_STEPS, AT_EQUAL_TIME, OTHERS, Record, cells, differences

from hadar_slurm.runtime.averaging.modes import TrainingMode

DATE, MACHINE = "2026-11-21", "two cores, no GPU, Debian 12"
FAULTS_DATE = "2026-11-26"
SLURM_DATE, SLURM_MACHINE = "2026-11-22", "two cores, no GPU, Slurm 22.05.8, Debian 12"
CURVES = "learning-curves.svg"


def write(found: Mapping[str, Any], records: Sequence[Record], path: Path) -> None:
    """Write the page and its curves."""
    curves(cells(records), path.parent / CURVES)
    path.write_text(text(found, path.parent / "faults.jsonl"), encoding="utf-8")


def text(found: Mapping[str, Any], faults: Path) -> str:
    """Return the page; `faults` and the runs in files beside it are shown if they are there."""
    few, slurm = map(_read, map(faults.with_name, ("few_data.jsonl", "slurm_faults.jsonl")))
    return "\n".join([*_lines(found, few), *_faults(_read(faults)), *_slurm_faults(slurm)])


def _read(path: Path) -> list[Record]:
    """Return the lines of a file, none if it is not there."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _lines(found: Mapping[str, Any], few: Sequence[Record]) -> list[str]:
    steps, time = (differences(found, *which) for which in (AT_EQUAL_STEPS, AT_EQUAL_TIME))
    verdict = _wrapped(f"{_verdict(steps, time)} {finding(few)}".rstrip())
    return [
        _OPENING.format(runs=found["runs"], minutes=found["cpu_s"] / 60, verdict=verdict),
        "## HadarE beside a single node\n",
        "At equal steps, which HadarE trains in less than a third of the time:\n",
        *_beside(found, steps),
        "",
        "At equal time, in which the single node, the fastest one, trains fewer steps, with a "
        "schedule of its own:\n",
        *_beside(found, time),
        "",
        f"![Held-out loss by steps and by time]({CURVES})\n",
        _CONTROLS,
        *_others(found),
        "",
        *_findings(found),
        "",
        "## Which rule for the optimiser's state\n",
        *_by_variant(found, {"average, the default": "HadarE", "keep": "keep", "reset": "reset"}),
        "",
        _wrapped(_best_rule(found)),
        "",
        *_few_data(section(few)),
    ]


def _few_data(blocks: Sequence[Block]) -> list[str]:
    """Return the section on few data."""
    command = "nice -n 12 python benchmarks/hadare/few_data.py"
    lines = ["## Few data and many epochs\n", "```", command, "```", ""]
    for block in blocks:
        if lines[-1].startswith("* ") and not str(block).startswith("* "):
            lines.append("")
        lines += [_wrapped(block)] if isinstance(block, str) else _table(block)
        lines += [""] * (not str(block).startswith("* "))
    return lines


def _verdict(steps: Sequence[Mapping[str, Any]], time: Sequence[Mapping[str, Any]]) -> str:
    """Return what becomes of the claim, by both ways to read it."""
    readings = {"at equal steps": steps, "at equal time": time}
    counts, outcomes = [], []
    for words, pairs in readings.items():
        is_held = pairs and all(pair["finding"] == "better" for pair in pairs)
        outcomes.append(f"{'' if is_held else 'not '}reproduced {words}")
        counts.append(f"{words} its held-out loss is {_counted(pairs)} of {len(pairs)}")
    return (
        'The claim that training in copies gives models of "consistently better inference '
        'quality" (HadarE, arXiv 2503.10918, abstract) is here '
        f"**{' and '.join(outcomes)}**: {'; '.join(counts)} pairs of "
        "task and optimiser. Better and worse are said of a mean difference by seed of more than "
        "two standard errors."
    )


def _counted(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return how many are better, the same and worse."""
    kinds = ("better", "no different", "worse", "too few seeds")
    counts = {kind: sum(pair["finding"] == kind for pair in pairs) for kind in kinds}
    return ", ".join(f"{kind} in {count}" for kind, count in counts.items() if count)


def _beside(found: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            "task, optimiser", "loss, single", "loss, HadarE", "difference by seed",
            "better seeds", "accuracy, single", "accuracy, HadarE", "difference by seed", "",
        ]
    ]  # fmt: skip
    for pair in pairs:
        names = found["means"][pair["cell"]]
        ours, theirs = names[pair["name"]], names[pair["against"]]
        losses = [_loss(theirs["loss"]), _loss(ours["loss"]), _loss(pair["loss"], "+")]
        seeds = f"{pair['better']} of {pair['seeds']}"
        accuracies = [_percent(each["accuracy"]) for each in (theirs, ours)]
        accuracies.append(_percent(pair["accuracy"], "+"))
        rows.append([pair["cell"], *losses, seeds, *accuracies, pair["finding"]])
    return _table(rows)


def _others(found: Mapping[str, Any]) -> list[str]:
    names = list(found["means"])
    rows = [["", "less", *names]]
    for name, against in OTHERS:
        pairs = {pair["cell"]: pair for pair in differences(found, name, against)}
        if pairs:
            shown = [_marked(pairs[cell]) if cell in pairs else "" for cell in names]
            rows.append([name, against, *shown])
    return _table(rows)


def _findings(found: Mapping[str, Any]) -> list[str]:
    """Return the rows in words: how often each is better, the same and worse."""
    counts = {
        words: "; ".join(
            f"{name} {_counted(pairs)} of {len(pairs)}"
            for name, left, right in rows
            if (pairs := differences(found, left, right))
        )
        for words, rows in _WORDS
    }
    return [_wrapped(f"* {words}: {text}.") for words, text in counts.items() if text]


def _marked(pair: Mapping[str, Any]) -> str:
    sign = {"better": "▼", "worse": "▲"}.get(pair["finding"], "")
    return f"{_loss(pair['loss'], '+')} {sign}".rstrip()


def _by_variant(found: Mapping[str, Any], variants: Mapping[str, str]) -> list[str]:
    names = list(found["means"])
    rows = [["loss", *names]]
    for words, variant in variants.items():
        means = [found["means"][cell].get(variant) for cell in names]
        rows.append([words, *(_loss(each["loss"]) if each else "" for each in means)])
    return _table(rows)


def _best_rule(found: Mapping[str, Any]) -> str:
    """Return how the other rules compare with the default, and which has the lowest loss."""
    told = [
        f"`{rule}` is {_counted(pairs)} of {len(pairs)}"
        for rule in ("keep", "reset")
        if (pairs := differences(found, rule, "HadarE"))
    ]
    cells = found["means"].values()
    losses = [
        (mean(names[name]["loss"][0] for names in cells), rule)
        for rule, name in (("average", "HadarE"), ("keep", "keep"), ("reset", "reset"))
        if all(name in names for names in cells)
    ]
    if not told or not losses:
        return ""
    best = f"The lowest loss over all is that of `{min(losses)[1]}`."
    return f"Beside `average`, by seed: {'; '.join(told)}. {best}"


def _faults(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section on copies that are processes."""
    if not records:
        return []
    hows = sorted(
        {_how(each) for each in records}, key=lambda how: (list(TrainingMode).index(how[0]), how)
    )
    by_mode = {
        mode + f" with `delay={delay:g}`" * bool(delay): [
            each for each in records if _how(each) == (mode, delay)
        ]
        for mode, delay in hows
    }
    kinds = {mode: hits(each) for mode, each in by_mode.items()}
    names = sorted({kind for each in kinds.values() for kind in each})
    rows = [["", *by_mode]]
    rows += [[name, *(str(found.get(name, "")) for found in kinds.values())] for name in names]
    found = [f"* {mode}: {summary(each)}" for mode, each in by_mode.items()]
    return [
        "## Faults\n",
        "```",
        *(
            _COMMAND.format(mode=mode, runs=len(each), seed=each[0]["seed"])
            + f" --delay {delay:g}" * bool(delay)
            for (mode, delay), each in zip(hows, by_mode.values(), strict=True)
        ),
        "```\n",
        _wrapped(
            f"Jobs of two to four copies of unequal speeds, each a process, {FAULTS_DATE}, "
            f"{MACHINE}, with much other work beside (a load of 10 to 30): "
            "[faults.jsonl](faults.jsonl). What was killed was started again up to 4 s later; a "
            "copy stood still for up to twice the time after which it counts as gone; connections "
            "were cut, values spoilt and copies killed also in the middle of a step."
        ),
        "",
        *map(_wrapped, found),
        "",
        "After each run these had to hold:\n",
        *map(_wrapped, _INVARIANTS),
        "",
        "Faults that hit:\n",
        *_table(rows),
        "",
    ]


def _how(each: Mapping[str, Any]) -> tuple[TrainingMode, float]:
    """Return the mode and the delay of a run."""
    return TrainingMode(each["mode"]), float(each.get("delay") or 0.0)


def _slurm_faults(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section on copies that are tasks of Slurm: averaging, and synchronous ones."""
    averaged = [
        each for each in records if each.get("mode", TrainingMode.AVERAGED) == TrainingMode.AVERAGED
    ]
    others = [each for each in records if each not in averaged]
    if not averaged:
        return []
    left = len(set(range(100)) - {each["run"] for each in averaged})
    return [
        "### On a real Slurm\n",
        "```",
        "python benchmarks/hadare/slurm_faults.py --seeds 0-99 "
        "--json benchmarks/hadare/slurm_faults.jsonl",
        "python benchmarks/hadare/slurm_faults.py --mode synchronous --gone-after 8 --seeds 0-99 "
        "--json benchmarks/hadare/slurm_faults.jsonl",
        "```\n",
        _wrapped(
            f"{len(averaged)} forked jobs of two or three copies in slots of 3 s, submitted by "
            f"`hadar-sbatch` to a local cluster of four nodes under a hadard, {SLURM_DATE}, "
            f"{SLURM_MACHINE}, three such programs at a time and much other work beside: "
            f"[slurm_faults.jsonl](slurm_faults.jsonl). {_by_slurm(averaged)} "
            "hadard and nodes came back up to 6 s later, and so long was the disk, an ext4 with "
            "the jobs' directories and the spool, full or frozen by `fsfreeze`. Copies that a "
            "signal killed alone were requeued by their batch script; killed together with it, "
            "their tasks count as failed. After each run all other tasks were to be completed, "
            "every step to be consolidated exactly once, every end of a slot to load, and no more "
            "work to be repeated than the slots that a fault hit. hadard's own death may cost "
            "nothing."
        ),
        "",
        _wrapped(summary(averaged) + _LEFT.format(left=left) * (left > 0)),
        "",
        *_synchronous_on_slurm(others),
    ]


def _synchronous_on_slurm(records: Sequence[Mapping[str, Any]]) -> list[str]:
    if not records:
        return []
    return [
        _wrapped(
            f"The same in synchronous mode, {FAULTS_DATE}, seeds 0 to "
            f"{max(each['run'] for each in records)}, with more kinds of faults, and all that "
            f"holds without Slurm checked: {_by_slurm(records)} {summary(records)}"
        ),
        "",
    ]


def _by_slurm(records: Sequence[Mapping[str, Any]]) -> str:
    """Return what has hit, and how often Slurm started copies."""
    restarts = sum(each["restarts"] for each in records)
    several = sum(sum(fault["hit"] for fault in each["faults"]) > 1 for each in records)
    return (
        f"Faults that hit: {_by_kind(hits(records))}; {several} jobs had several. Slurm started "
        f"copies again {restarts} times, moves included."
    )


def _by_kind(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{kind} {count}" for kind, count in counts.items())


def _loss(figure: Sequence[float], sign: str = "") -> str:
    return f"{figure[0]:{sign}.3f} ± {figure[1]:.3f}"


def _percent(figure: Sequence[float], sign: str = "") -> str:
    return f"{100 * figure[0]:{sign}.1f} ± {100 * figure[1]:.1f} %"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|---|" + "---:|" * (len(rows[0]) - 1), *body]


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)


_OPENING = f"""\
# What HadarE's copies come to

Written by `quality.py`; change [page.py](page.py), not this.

```
nice -n 15 python benchmarks/hadare/quality.py
```

{{runs}} runs ({{minutes:.0f}} CPU minutes), {DATE}, {MACHINE}, one thread, PyTorch
2.13.0; each run is a line of [quality.jsonl](quality.jsonl). The runtime's own code trains and
makes one ([replay.py](replay.py)); time is reckoned: nodes train 1, 1, 0.5, 0.5 and 0.2 steps a
second, and making one takes none. HadarE's copies train 20 s a slot, 1,024 steps in all, by quotas
in proportion to speed, with averaged optimiser states. Beside a single node its runs have the same
seeds: the same first parameters, the same samples. ± is the standard deviation over seeds; loss is
the cross-entropy on held-out data in nats.

{{verdict}}

The tasks are small and short: 10 classes of generated 12x12 images (a network with BatchNorm, 8,000
parameters), and the next letter of a generated language (a transformer, 73,000 parameters).
Learning rates were picked for one node at 1,024 steps, with warm-up and a cosine to zero; HadarE's
own best may be others. Whether a training of hours on many GPUs behaves the same is not measured
here.
"""

_COMMAND = (
    "python benchmarks/hadare/faults.py --mode {mode} --runs {runs} --seed {seed} --at-once 5 "
    "--gone-after 5 --json benchmarks/hadare/faults.jsonl"
)

_INVARIANTS = (
    "* the job is done, and each step is in the ends of slots exactly once;",
    "* each sample has entered the parameters with the weight that it should have, once: a "
    "parameter records that, whose gradient by a sample is constant;",
    "* in each synchronous step that was applied, the samples of all copies were exactly the "
    "batch;",
    "* copies with the same steps of the same group have the same bits, parameters and optimiser; "
    "so have all copies at the end (until the next end of a slot not where a bit was flipped);",
    "* every end of a slot that was ever seen loads, and all its values are finite;",
    "* work is repeated no more than a slot of a copy for each time that it was killed or kept "
    "from its files, in synchronous mode no more than four steps for each fault, and those since "
    "the last end of a slot where no copy was left that had them.",
)

_LEFT = (
    " {left} of the 100 seeds are still to be run: the machine had no time for them. Two of these "
    "passed the script's limits of time while 34 processes waited for two cores, and two froze a "
    "frozen disk, by a mistake of the script. Seed 69 had broken: a copy that came back too late "
    "for the others' patience lost its part once more. It is mended, and the seed run again."
)

# What a few rows say together.
_WORDS: tuple[tuple[str, Sequence[tuple[str, str, str]]], ...] = (
    (
        "Four times as many steps, in four times as many slots",
        (
            ("at equal steps HadarE is", "HadarE, 4 x the steps", "single, 4 x the steps"),
            ("at equal time it is", "HadarE, 4 x the steps", "single, same time, 4 x the steps"),
        ),
    ),
    (
        "Twice the learning rate that was picked for one node",
        (
            ("HadarE is", "HadarE, rate x 2", "HadarE"),
            ("one node is", "single, rate x 2", "single"),
        ),
    ),
    (
        "The rate by the root of the effective number of copies, the default since these runs",
        (("HadarE is", "HadarE, rate by copies", "HadarE"),),
    ),
    (
        "A learning rate that stays as it is",
        (
            ("HadarE at equal steps is", "HadarE, constant rate", "single, constant rate"),
            (
                "one node with its last ends of slots averaged is",
                "averaged ends, constant rate",
                "single, constant rate",
            ),
        ),
    ),
    ("Slots beside those of 20 s", [(f"{x}x is", f"{x}x", "HadarE") for x in (1, 4, 8, 16)]),
    (
        "The same steps in all beside five copies",
        [(f"{n} copies are", f"{n} copies", "HadarE") for n in (2, 8)],
    ),
    ("A momentum step on the mean", (("it is", "outer momentum", "HadarE"),)),
)

_CONTROLS = """\
## Where the difference comes from

Differences of held-out loss by seed, left less right; ▼ better and ▲ worse by more than two
standard errors. *Averaged ends* is one node whose last five ends of slots were averaged. 2x (20 s)
is HadarE's slot in all other rows, 5 its number of copies; 2 copies have speeds 1 and 1, 8 also
1, 0.5 and 0.2. *Outer momentum* is `Outer()`: a rate of 0.7, a momentum of 0.9.
"""
