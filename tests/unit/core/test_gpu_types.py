"""What is known of GPU types, and whether they are what a job needs."""

from __future__ import annotations

import pytest

from hadar_slurm.core.gpu_types import (
    GpuFacts,
    Needs,
    facts_of,
    is_slice,
    parse_gpu_types,
    with_own,
)
from hadar_slurm.jobspec.units import parse_memory_gb
from hadar_slurm.resources import data_file

SHIPPED = parse_gpu_types(data_file("gpu_types.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "bandwidth_gb_s", "memory_gb", "compute_capability"),
    [
        ("V100", 900.0, 16.0, 7.0),
        ("tesla_v100-sxm2-32gb", 900.0, 32.0, 7.0),
        ("nvidia_a100_80gb_pcie", 1935.0, 80.0, 8.0),
        ("nvidia_a100-sxm4-80gb", 1935.0, 80.0, 8.0),
        ("a100", 1555.0, 40.0, 8.0),
        ("nvidia_geforce_rtx_2080_ti", 616.0, 11.0, 7.5),
        ("t400", 80.0, 2.0, 7.5),
        ("l40s", 864.0, 48.0, 8.9),
        ("mi300x", 5300.0, 192.0, None),
        ("amd_instinct_mi300a", 5300.0, 128.0, None),
        ("rtx_6000_ada_generation", 960.0, 48.0, 8.9),
        ("a10g", 600.0, 24.0, 8.6),
        # Other cards, whose names only begin alike.
        ("rtx_a1000", None, None, None),
        ("quadro_p4000_8gb", None, 8.0, None),
        ("quantum9", None, None, None),
        ("quantum9_64gb", None, 64.0, None),
        # Slices have the smaller of their shares of memory and of compute slices.
        ("nvidia_a100-sxm4-40gb_mig_1g.5gb", 1555.0 / 8, 5.0, 8.0),
        ("nvidia_a100-sxm4-80gb_mig_1g.10gb", 1935.0 / 8, 10.0, 8.0),
        ("a100_3g.20gb", 1555.0 * 3 / 7, 20.0, 8.0),
        ("a30_1g.6gb", 933.0 / 4, 6.0, 8.0),
        ("1g.5gb", 1555.0 / 8, 5.0, 8.0),
    ],
)
def test_a_type_is_known_under_the_names_that_sites_give_it(
    name: str,
    bandwidth_gb_s: float | None,
    memory_gb: float | None,
    compute_capability: float | None,
) -> None:
    expected = GpuFacts(
        bandwidth_gb_s=bandwidth_gb_s and pytest.approx(bandwidth_gb_s),
        memory_gb=memory_gb,
        compute_capability=compute_capability,
    )
    assert facts_of(name, SHIPPED) == expected
    assert is_slice(name) == ("g." in name)


def test_a_site_s_own_values_win_one_by_one() -> None:
    own = with_own(SHIPPED, {"V100": {"memory_gb": 32}, "quantum9": {"compute_capability": 99}})
    assert facts_of("v100", own) == GpuFacts(900.0, 32, 7.0)
    assert facts_of("quantum9", own) == GpuFacts(None, None, 99)
    assert facts_of("a100", own) == SHIPPED["a100"]


@pytest.mark.parametrize(
    ("needs", "name", "why_not"),
    [
        (Needs(), "v100", ""),
        (Needs(memory_gb=16), "v100", ""),
        (Needs(memory_gb=40), "v100", "its memory is 16 GB, 40 GB is needed"),
        (Needs(memory_gb=40), "A100", ""),
        (Needs(memory_gb=1), "quantum9", "its memory is not known"),
        (Needs(compute_capability=8), "v100", "its compute capability is 7, 8 is needed"),
        (Needs(compute_capability=8.0), "h100", ""),
        (Needs(compute_capability=5), "mi300x", "its compute capability is not known"),
        (Needs(types=("a100", "h100")), "H100", ""),
        (Needs(types=("a100", "h100")), "v100", "only a100, h100 may be used"),
        (Needs(types=("a100",), memory_gb=80), "a100", "its memory is 40 GB"),
        (Needs(), "a100_1g.5gb", "it is a slice of a GPU"),
        (Needs(types=("a100_1g.5gb",)), "a100_1g.5gb", ""),
        (Needs(types=("a100_1g.5gb",), memory_gb=8), "a100_1g.5gb", "its memory is 5 GB"),
    ],
)
def test_a_job_may_have_what_it_needs(needs: Needs, name: str, why_not: str) -> None:
    found = needs.why_not(name, SHIPPED)
    assert found.startswith(why_not)
    assert bool(found) == bool(why_not)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40", 40),
        ("40G", 40),
        ("40 GB", 40),
        ("40GiB", 40),
        ("40000M", 40),
        ("0.5t", 500),
        ("", None),
        ("G", None),
        ("-1", None),
        ("40K", None),
        ("nan", None),
    ],
)
def test_sizes_of_memory(text: str, expected: float | None) -> None:
    assert parse_memory_gb(text) == expected
