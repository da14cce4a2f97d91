"""Measures policies at several numbers of jobs, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
from collections.abc import Callable, Mapping


def peak_mib() -> int:
    """Return the peak of this process's memory, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_each(
    measure: Callable[..., Mapping[str, object]],
    policies: str,
    jobs: str,
    *rest: object,
    as_json: bool,
) -> None:
    """Call `measure(policy, number, *rest)` for comma-separated lists, and print what it returns.

    A line for each as soon as it is there, or all as JSON at the end.
    """
    context = multiprocessing.get_context("spawn")
    found = []
    for policy in policies.split(","):
        for count in jobs.split(","):
            with context.Pool(1) as pool:
                found.append(pool.apply(measure, (policy, int(count), *rest)))
            if not as_json:
                print("  ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
    if as_json:
        json.dump(found, sys.stdout, indent=2)
