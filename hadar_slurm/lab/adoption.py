"""What adoption of a policy by some users brings each user: the runs, and tables and JSON.

The *gain* of users is the mean completion time of their jobs at 0 % adoption over that at a higher
share: above 1 they gain. Each job counts as much as any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from hadar_slurm.errors import UsageError
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.study.compare import FORKING, Cell, Record, is_plain_slurm, knowledge
from hadar_slurm.lab.study.scenarios import Overrides
from hadar_slurm.lab.study.summary import GROUP_LABELS, HOUR_S, KILLED_WORDS, Note
from hadar_slurm.lab.traces.adopters import as_submitted, users_drawn
from hadar_slurm.policies.registry import DEFAULT_POLICY, make_policy

# What all other users have without another choice.
PLAIN = "slurm"
# Rows of users in tables; the JSON has all.
_MOST_USERS = 40
_PARTS = ("all", "adopters", "others")
# A gain or a loss of less is chance: any change moves single jobs.
_EVEN = 0.01

_WORDS = (
    "A share of the users is under the policy; the jobs of all others are placed by the plain "
    "Slurm that is named, by priority with backfill, on GPU types that their users choose. Change: "
    "of the mean completion time, beside 0 % adoption; below 0 is a gain.",
)


def with_adoption(
    choices: Overrides, shares: tuple[float, ...], rules: Sequence[str], *, is_scenario: bool
) -> Overrides:
    """Return the choices with the shares of users, in per cent, who adopt a policy."""
    given = choices.policies or ()
    plain = tuple(name for name in given if is_plain_slurm(name)) or (PLAIN,)
    policies = tuple(name for name in given if not is_plain_slurm(name)) or (DEFAULT_POLICY,)
    for share in shares:
        if not 0 < share <= 100:
            raise UsageError(f"--adoption {share:g}: expected per cent, above 0 and at most 100")
    if is_scenario:
        raise UsageError("--adoption: scenarios take none; give traces")
    if set(rules) != {"hadar"}:
        raise UsageError("--adoption: only hadar's rules have plain jobs; leave out --rules")
    for name in plain:
        slurm = make_policy(name)
        if not isinstance(slurm, PlainSlurm) or slurm.splits_unevenly or slurm.requeues:
            raise UsageError(
                f"--adoption: {name} cannot be what all other users have; give a slurm without the "
                "words gpus, preempt=requeue and preempt=cancel"
            )
    if forking := [name for name in policies if name in FORKING]:
        raise UsageError(f"--adoption: {forking[0]} forks jobs; give another --policy")
    return replace(choices, policies=(*plain, *policies), adoption=shares)


def adoption_cells(each: Cell, choices: Overrides) -> Iterator[Cell]:
    """Yield the runs of one workload without adopters, and with each share under each policy.

    All of it beside each plain Slurm among the policies.
    """
    jobs = each.workload
    users = {spec.user for spec in jobs.specs} - {""}
    if not users:
        raise UsageError(
            f"--adoption: {jobs.name} does not have users; give Slurm's history, with the field "
            "User (docs/traces.md)"
        )
    names = choices.policies or ()
    plain = [name for name in names if is_plain_slurm(name)]
    seeds = (choices.seeds or (0,)) if jobs.seed is None else (jobs.seed,)
    for seed, beside in product(seeds, plain):
        others = [name for name in names if name not in plain]
        for policy, share in [(beside, 0.0), *product(others, choices.adoption)]:
            adopters = users_drawn(users, share, seed=seed)
            played = replace(jobs, specs=tuple(as_submitted(jobs.specs, adopters)), seed=seed)
            yield replace(
                each,
                workload=played,
                policy=policy,
                adoption=share,
                adopters=adopters,
                beside=beside,
            )


def adoption_tree(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the gains for each run with a share of adopters and one without any beside it.

    Times in seconds; `gain` as in this module's words. Users are in order of their jobs' number.
    """
    before = {_setting(record): record for record in _done(records) if not record["adoption"]}
    return [
        _tree(before[_setting(record)], record)
        for record in _done(records)
        if record["adoption"] and _setting(record) in before
    ]


def adoption_notes(records: Sequence[Record]) -> list[Note]:
    """Return a table over the shares, and one by user, for each workload and policy."""
    found = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for tree in adoption_tree(records):
        found[tree["setting"], tree["policy"]].append(tree)
    notes = []
    for (setting, policy), trees in found.items():
        notes += [_over_shares(setting, policy, trees), _by_user(setting, policy, trees)]
    return notes


def _done(records: Iterable[Record]) -> Iterator[Record]:
    return (r for r in records if r["status"] == "done" and r.get("adoption") is not None)


def _setting(record: Record) -> tuple[object, ...]:
    labels = *GROUP_LABELS, "movable", "seed", "speeds", "sizes", "beside"
    return tuple(record.get(label) for label in labels)


def _tree(before: Record, after: Record) -> dict[str, Any]:
    adopters, times = set(after["adopters"]), defaultdict[str, list[_Times]](list)
    pairs = zip(after["users"], before["jcts_s"], after["jcts_s"], strict=True)
    killed = [frozenset(record.get("killed_jobs", ())) for record in (before, after)]
    for number, (user, was_s, is_s) in enumerate(pairs):
        times[user].append(_Times(was_s, is_s, *(number in of_run for of_run in killed)))
    order = sorted(times, key=lambda user: (-len(times[user]), user))
    parts = {
        "all": order,
        "adopters": [user for user in order if user in adopters],
        "others": [user for user in order if user not in adopters],
    }
    load = "" if after["load"] is None else f" at {after['load']:g} % load"
    knows = "".join(f", {note}" for note in knowledge(after["speeds"], after["sizes"]))
    moves = f", {after['movable']:g} % movable" if "movable" in after else ""
    return {
        "setting": f"{after['trace']}{load}{knows}{moves}, restart {after['restart']} s, "
        f"others {after['beside']}",
        "trace": after["trace"],
        "load": after["load"],
        "policy": after["bare_policy"],
        "beside": after["beside"],
        "percent": after["adoption"],
        "seed": after["seed"],
        **{name: _gain(times, users) for name, users in parts.items()},
        "users": [
            {"user": user, "adopts": user in adopters, **_gain(times, [user])} for user in order
        ],
    }


class _Times(NamedTuple):
    """The completion times of a job before and after, and whether its time limit ended it then."""

    was_s: float
    is_s: float
    was_killed: bool
    is_killed: bool


def _gain(times: Mapping[str, Sequence[_Times]], users: Sequence[str]) -> Record:
    """Return numbers of users and jobs, and mean completion times before and after; of some."""
    pairs = [pair for user in users for pair in times[user]]
    was_s, is_s = (sum(pair[side] for pair in pairs) / max(1, len(pairs)) for side in (0, 1))
    return {
        "users": len(users),
        "jobs": len(pairs),
        "mean_jct_before_s": was_s if pairs else None,
        "mean_jct_s": is_s if pairs else None,
        "gain": was_s / is_s if pairs and is_s > 0 else None,
        "killed_before": sum(pair.was_killed for pair in pairs),
        "killed": sum(pair.is_killed for pair in pairs),
    }


def _over_shares(setting: str, policy: str, trees: Sequence[Mapping[str, Any]]) -> Note:
    """Return a table with a row for each share; means over the seeds."""
    has_killed = any(tree["all"][key] for tree in trees for key in ("killed_before", "killed"))
    rows = []
    for percent in sorted({tree["percent"] for tree in trees}):
        of_share = [tree for tree in trees if tree["percent"] == percent]
        users = [user for tree in of_share for user in tree["users"]]
        counts = {
            word: sum(sign * (user["gain"] - 1) > _EVEN for user in users) / len(of_share)
            for word, sign in (("gain", 1), ("lose", -1))
        }
        worst = min(users, key=lambda user: user["gain"])
        ended = [
            f"{sum(tree['all'][key] for tree in of_share) / len(of_share):.3g}"
            for key in ("killed_before", "killed")
        ]
        cells: list[str] = []
        for part in _PARTS:
            cells += _hours([tree[part] for tree in of_share if tree[part]["jobs"]])
        rows.append(
            (
                f"{percent:g} %",
                *cells,
                f"{counts['gain']:.3g}",
                f"{counts['lose']:.3g}",
                f"{worst['user']} {_change(worst['gain'], 1.0)}",
                *ended * has_killed,
            )
        )
    columns = [f"{part}: {what}" for part in _PARTS for what in ("h at 0 %", "h", "change")]
    head = ("share", *columns, "users who gain", "who lose", "who loses most")
    head += ("timed out at 0 %", "timed out") * has_killed
    words = (*_WORDS, *(KILLED_WORDS,) * has_killed)
    return Note(f"{setting}: adoption of {policy}", words, (head, *rows))


def _by_user(setting: str, policy: str, trees: Sequence[Mapping[str, Any]]) -> Note:
    """Return a table with a row for each user, of the first seed."""
    seed = trees[0]["seed"]
    shown = sorted((t for t in trees if t["seed"] == seed), key=lambda tree: tree["percent"])
    words = ["Marked with *: has adopted the policy."]
    if len(shown) < len(trees):
        words.append(f"Seed {seed}; compare.json has the others.")
    users = shown[0]["users"]
    if len(users) > _MOST_USERS:
        words.append(f"The {_MOST_USERS} users with most jobs of {len(users)}.")
    rows = []
    for number, user in enumerate(users[:_MOST_USERS]):
        cells = [
            _change(each["mean_jct_before_s"], each["mean_jct_s"]) + " *" * each["adopts"]
            for each in (tree["users"][number] for tree in shown)
        ]
        hours = f"{user['mean_jct_before_s'] / HOUR_S:.2f}"
        rows.append((user["user"] or "(none)", str(user["jobs"]), hours, *cells))
    head = ("user", "jobs", "mean JCT h at 0 %", *(f"at {t['percent']:g} %" for t in shown))
    return Note(f"{setting}: adoption of {policy} by user", (" ".join(words),), (head, *rows))


def _hours(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean completion times of one part of the users, and their change."""
    if not parts:
        return ["-"] * 3
    keys = ("mean_jct_before_s", "mean_jct_s")
    was_s, is_s = (sum(float(part[key]) for part in parts) / len(parts) for key in keys)
    return [f"{was_s / HOUR_S:.2f}", f"{is_s / HOUR_S:.2f}", _change(was_s, is_s)]


def _change(was: float, now: float) -> str:
    """Return the relative change of a time in per cent."""
    return f"{100 * (now / was - 1):+.0f} %" if was > 0 else "-"
