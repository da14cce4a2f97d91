"""Writes docs/slurm-fidelity.md, and the record for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from slurm_fidelity.compare import Difference, Figures, Summary, summary
from slurm_fidelity.jobs import JobList, Play
from slurm_fidelity.judging import DRAWN, SEEDS, Judged
from slurm_fidelity.twice import twice_section

_HOUR_S = 3600.0
# What issue and page ask of the means over the lists.
MOST_JCT, MOST_TTD, LEAST_TAU, LEAST_TYPES, MOST_WAIT = 0.06, 0.10, 0.93, 0.90, 0.15

_HEAD = """\
# Policy `slurm` beside a real Slurm

`slurm` simulates the Slurm that a site has without hadard ([policies.md](policies.md)). Here the
same lists of jobs are played on a real slurmctld and in the simulator. Written by
`python -m slurm_fidelity judge` (benchmarks/slurm_fidelity); the plays are kept in
benchmarks/results/slurm_fidelity, so that a change of the policy is judged without a Slurm.
"""

_FROM_STATES = """\
Two real plays of one list go apart, since a tenth of a second decides which of two jobs takes a
node, and from then on everything is another: *order* and *types* of single plays say more of the
list than of the rules. *From the same states* does not: for each start of the real Slurm the policy
is asked what it would do in that very state, and this is the share of starts that it decides
alike, with the same GPUs on the same nodes; `-` where jobs are stopped for others.
"""

_HOW = """\
## How

* A list is played on a local cluster (`hadar cluster`), that of newer Slurms in a container
  (`real --slurm 24.11`, in the image of docker/up): its jobs sleep as long as they would run on
  the slowest of the GPU types that they got, in time compressed 32 to 600 times. Priorities are
  multifactor with fair tree or classic fair share, computed again each minute, or first in, first
  out; `TRESBillingWeights` counts GPUs, nodes are weighted by type.
* The simulator plays a list {seeds} times beside each real play. Two accidents of compressed time
  are taken over from it: in which parts of a second Slurm's two schedulers look at the queue, and
  when priorities were computed. Each scheduler sleeps for a second and then looks, main at the end
  of a job as well; its phase and drift are those of the real starts, and there are looks also in
  the seconds in which nothing was started. A third is drawn: the tenths of a second between the end
  of a job and the next look. Which of two jobs takes a node hangs on them. *Looks drawn*: nothing
  of the looks is taken from the real play ({drawn} times each).
* *JCT* and *TTD* are the ratios of the simulated to the real mean completion time and to the real
  time from the first submission to the last end. *Order* is Kendall's tau of the starts. *Types* is
  the share of the jobs on the same GPU types. *Large* is the ratio of the mean waits of gangs of 8
  GPUs or more; `-` where they hardly wait. All are means over pairs of a simulated
  and a real play.
* 24.11 and 26.05 have two rules that 22.05 has not: which node gives less to `--gpus=N`, and how a
  start later than now is tested; `release=` names the version to the policy. Both also plan later
  starts without node weights that `scontrol update` has set, so these are in slurm.conf here.
* In `preempted` a partition of a higher PriorityTier has jobs of the other requeued
  (`preempt/partition_prio`, REQUEUE); the policy takes partitions for QOS. In `preempted-qos` a QOS
  has those of the other requeued (`preempt/qos`). A requeued job waits for two minutes, which
  compressed are hours. The job that had it requeued starts at a look after it is gone: at main's,
  which follows at once, if it is the first of the queue, else at the next of backfill. In
  `cancelled` a QOS has those of the other ended (CANCEL), which then count as done, and in
  `suspended` it may have them suspended (SUSPEND,GANG): a suspended job keeps its GPUs, so Slurm
  suspends none.
* In `priority-qos` a QOS counts for the priority, with half of fair share's weight
  (PriorityWeightQOS), and preempts nothing. Fair tree divides a rank by the number of all
  associations, here of five users and two without jobs; so the policy has a smaller weight.
* The rules are those of Slurm's source. Where plays led to one, it was a list that is marked
  *chosen on*; the others only judge. Of `killed`, `philly1`, `within`, `ef01`, `over-nodes-list`,
  `priority-qos`, `preempted`, `short-window` and `single` misses were looked at as well, and the
  comparison was mended, not the policy. On `preempted-qos` it was found that both schedulers have
  to be played, each at looks of its own: with one look in a second, between theirs, its mean JCT
  was .87 of the real one.
"""

_LIMITS = """\
## What it does not show

* In 24.11 and 26.05 the main scheduler looks at whole seconds of the clock; here that is estimated
  from the starts, as in 22.05.
* Simulated looks end ten minutes after the last real start.
* QOS with limits, grace times of preemption, reservations, licences, CPUs and memory
  that run out before GPUs.
* Windows of traces have 80 to 110 jobs; their durations are cut, and their clusters are smaller.
* Slurm ends jobs beyond their limits every half minute: compressed, that is up to five hours.
"""

_LICENCES = """\
The windows are of the ElasticFlow traces (ASPLOS'23, MIT), of Philly (ATC'19, CC-BY-4.0, by way of
Sia's artifact) and of Alibaba's cluster-trace-gpu-v2023; users and limits are drawn.
"""


def page(judged: Sequence[Judged], about: str) -> str:
    """Return the page; in its tables the lists whose JCT is farthest off come first."""
    judged = sorted(judged, key=lambda each: -abs(math.log(each.off.jct)))
    texts = [
        _HEAD,
        *_verdict(judged),
        _FROM_STATES,
        "## Lists\n",
        _table(judged),
        "",
        _figures(judged),
        "",
        twice_section(judged, LEAST_TYPES),
    ]
    texts += [
        _HOW.format(seeds=len(SEEDS), drawn=len(DRAWN)),
        _LIMITS,
        "## Made\n",
        f"{about}.\n",
        _LICENCES,
    ]
    return "\n".join(texts)


def _verdict(judged: Sequence[Judged]) -> Iterable[str]:
    yield (
        "| | lists | mean \\|ln JCT\\| | mean \\|ln TTD\\| | order | types | \\|ln large\\| | "
        "from the same states |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    yield (
        f"| asked for | 8 | {MOST_JCT:.2f} | {MOST_TTD:.2f} | {LEAST_TAU:.2f} | "
        f"{LEAST_TYPES:.0%} | {MOST_WAIT:.2f} | - |"
    )
    for name, (half, part) in parts(judged).items():
        alike = [each.from_states for each in half if each.from_states is not None]
        yield f"{_summary_row(name, part)} {_share(mean(alike) if alike else None)} |"
    yield ""


def parts(judged: Sequence[Judged]) -> dict[str, tuple[list[Judged], Summary]]:
    """Return all lists and the two halves with their means, and those between two real plays."""
    found: dict[str, tuple[list[Judged], Summary]] = {}
    halves = {
        "all lists": list(judged),
        "judged only": [each for each in judged if not each.jobs.is_for_tuning],
        "chosen on": [each for each in judged if each.jobs.is_for_tuning],
        **{
            f"Slurm {version}": [each for each in judged if each.slurm == version]
            for version in sorted({each.slurm for each in judged})
        },
    }
    for name, half in halves.items():
        if half:
            found[name] = half, summary({_key(each): [each.off] for each in half})
    drawn = {_key(each): [each.off_drawn] for each in judged if each.off_drawn}
    if drawn:
        found["all lists, looks drawn"] = [], summary(drawn)
    twice = {_key(each): [each.between_real] for each in judged if each.between_real}
    if twice:
        found["two real plays"] = [], summary(twice)
    return found


def _key(each: Judged) -> str:
    return f"{each.jobs.name} {each.slurm}"


def _summary_row(name: str, part: Summary) -> str:
    wait = "-" if math.isnan(part.large_wait) else f"{part.large_wait:.2f}"
    cells = (
        name, str(part.lists), f"{part.jct:.3f}", f"{part.ttd:.3f}", f"{part.tau:.3f}",
        f"{part.same_types:.0%}", wait,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _table(judged: Sequence[Judged]) -> str:
    lines = [
        "| list | Slurm | requests | share | jobs | plays | JCT | TTD | order | types | large | "
        "from the same states | two real plays: JCT, TTD, order, types |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for each in judged:
        jobs = each.jobs
        mark = ", chosen on" * jobs.is_for_tuning
        between = each.between_real
        cells = [
            f"{jobs.name}{mark}", each.slurm, _words(each), jobs.fairshare, str(len(jobs.jobs)),
            str(len(each.real)), *_cells(each.off), _share(each.from_states),
            ", ".join(_cells(between)[:4]) if between else "-",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _words(each: Judged) -> str:
    form = {
        "gpus": "`--gpus=N`", "nodes": "`-N k --gpus-per-node=g`", "list": '`-N k -C "[a|b]"`',
    }[each.jobs.form]  # fmt: skip
    is_or = each.jobs.choice == "open" and each.jobs.form != "list"
    return (form + ' `-C "a|b"`' * is_or).replace("|", "\\|")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _cells(off: Difference) -> list[str]:
    large = "-" if off.large_wait is None else f"{off.large_wait:.2f}"
    return [
        f"{off.jct:.2f}", f"{off.ttd:.2f}", f"{off.tau:.2f}", f"{off.same_types:.0%}", large,
    ]  # fmt: skip


def _figures(judged: Sequence[Judged]) -> str:
    lines = [
        "| list | about | mean JCT, h: real | simulated | mean wait, h: real | simulated | "
        "ended by limits | on several types | preempted | late, s | load |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in judged:
        real, ours = each.real, each.simulated
        cells = [
            f"{each.jobs.name}, {each.slurm}",
            f"{each.jobs.about}; {each.jobs.compression} times as fast",
            ", ".join(f"{f.mean_jct_s / _HOUR_S:.2f}" for f in real),
            _range([f.mean_jct_s / _HOUR_S for f in ours]),
            ", ".join(f"{f.mean_wait_s / _HOUR_S:.2f}" for f in real),
            _range([f.mean_wait_s / _HOUR_S for f in ours]),
            _both([f.ended_by_limit for f in real], [f.ended_by_limit for f in ours]),
            _both([f.mixed for f in real], [f.mixed for f in ours]),
            _both([f.preempted for f in real], [f.preempted for f in ours]),
            f"{each.late_s:.1f}", f"{each.load:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _both(real: Sequence[int], ours: Sequence[int]) -> str:
    return f"{', '.join(map(str, real))}; {mean(ours):.0f}"


def record(judged: Sequence[Judged], about: str) -> dict[str, Any]:
    """Return what the page says, for programs."""
    return {
        "made": about,
        "means": {name: asdict(part) for name, (_, part) in parts(judged).items()},
        "lists": [
            {
                "list": each.jobs.name,
                "slurm": each.slurm,
                "is_for_tuning": each.jobs.is_for_tuning,
                "off": asdict(each.off),
                "from_states": each.from_states,
                "off_drawn": asdict(each.off_drawn) if each.off_drawn else None,
                "between_real": asdict(each.between_real) if each.between_real else None,
                "real": [asdict(f) for f in each.real],
                "simulated": [asdict(f) for f in each.simulated],
            }
            for each in judged
        ],
    }


def recorded(
    tree: Mapping[str, Any], lists: Mapping[str, JobList], plays: Sequence[Play]
) -> list[Judged]:
    """Return what a record says of the lists that there are, as it was judged then."""
    found = []
    for each in tree["lists"]:
        real = [play for play in plays if (play.list, play.slurm) == (each["list"], each["slurm"])]
        if each["list"] in lists and real:
            between, alike = each["between_real"], each["from_states"]
            drawn = each.get("off_drawn")
            judged = Judged(
                lists[each["list"]],
                each["slurm"],
                *(tuple(Figures(**f) for f in each[side]) for side in ("real", "simulated")),
                Difference(**each["off"]),
                Difference(**between) if between else None,
                max(play.late_s for play in real),
                max(play.load for play in real),
                alike,
                Difference(**drawn) if drawn else None,
            )
            found.append(judged)
    return found
