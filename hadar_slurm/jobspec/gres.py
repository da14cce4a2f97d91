"""Parses Slurm's texts about GPUs: inventories, requests, allocations. Pure, standard library only.

Job templates use it too, to find the GPUs of their allocation.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

# One allocation in `scontrol show job -d`: nodes with equal allocations, and their GRES.
_DETAIL = re.compile(r"(?:^|\s)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
# GPUs in use as shards or by MPS: `shard:v100:2(IDX:0-1)` (22.05), or shares by GPU, `(0/4,3/4)`.
_SHARED = re.compile(r"(?:^|,)(?:shard|mps)(?::([^:,()]+))?:(\d+)\(([^)]*)\)")
_GPU = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)(?=[,(]|$)")


def parse_gpus(text: str, *, untyped: str = "gpu") -> dict[str, int]:
    """Return GPUs by type from `gpu:v100:4(S:0),gpu:k80:2`.

    Zero counts are left out: Slurm 22.05 prints `gpu:v100:0` for types a job does not hold.
    GPUs without a type count under the name `untyped`.
    """
    counts: Counter[str] = Counter()
    for gpu_type, count in _GPU.findall(re.sub(r"\([^)]*\)", "", text)):
        counts[gpu_type or untyped] += int(count)
    return {gpu_type: count for gpu_type, count in counts.items() if count}


# Thousands of jobs have a few distinct values.
@lru_cache(maxsize=4096)
def asked_gpus(text: str) -> tuple[tuple[str, int], ...]:
    """Return GPUs by type from `gres:gpu:k80:2` (22.05) or `gres/gpu:k80:2` (later).

    26.05 writes `gres/gpu:k80=2` per task. Of several for one type the last holds, as in Slurm.
    """
    # A request for one GPU may leave the count out.
    whole = re.sub(r"gres[:/]", "", text).replace("=", ":")
    whole = re.sub(r"(^|,)(gpu(?::[^:,]*[A-Za-z][^:,]*)?)(?=,|$)", r"\1\2:1", whole)
    return tuple(sorted({t or "gpu": int(n) for t, n in _GPU.findall(whole) if int(n)}.items()))


def parse_gpu_detail(text: str) -> list[tuple[str, dict[str, int]]]:
    """Return (folded node list, GPUs on each node) of each part of a job's allocation.

    `text` is the output of `scontrol show job -d` for one job.
    """
    return [(nodes, gpus) for nodes, gres in _DETAIL.findall(text) if (gpus := parse_gpus(gres))]


def parse_shared_gpus(text: str, *, untyped: str = "gpu") -> dict[str, int]:
    """Return the GPUs by type of which jobs have shares, by a node's GresUsed."""
    counts: Counter[str] = Counter()
    for gpu_type, count, where in _SHARED.findall(text):
        shares = re.findall(r"(\d+)/\d", where)
        counts[gpu_type or untyped] += sum(map(bool, map(int, shares))) if shares else int(count)
    return {gpu_type: count for gpu_type, count in counts.items() if count}
