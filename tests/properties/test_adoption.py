"""Studies of adoption: whatever users, jobs and shares, no run is beyond a bound of its own."""

from __future__ import annotations

from dataclasses import replace

from builders import a_spec, some_rates
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import CLUSTER, a_cell

from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.adoption import adoption_cells
from hadar_slurm.lab.study.compare import StudyWorkload, run_cell
from hadar_slurm.lab.study.plots import least_bound_h
from hadar_slurm.lab.study.scenarios import Overrides
from hadar_slurm.lab.study.summary import groups

PLAIN = st.sampled_from(["slurm", "slurm:list", "slurm:list:open", "slurm:list:look"])


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Draw a job of one of three users; some cannot move, and some have limits."""
    fast = draw(st.floats(5.0, 20.0))
    spec = a_spec(
        str(draw(st.integers(1, 10**6))),
        draw(st.integers(1, 2)),
        steps=draw(st.integers(10, 5000)),
        throughputs=some_rates(V100=fast, K80=fast * draw(st.floats(0.1, 1.5))),
        submitted_s=draw(st.floats(0.0, 5000.0)),
        can_checkpoint=draw(st.booleans()),
        user=draw(st.sampled_from(["ann", "bob", "cy"])),
    )
    limit_s = draw(st.sampled_from([spec.limit_s, 7200.0]))
    return replace(spec, limit_s=limit_s)


@given(
    st.lists(jobs(), min_size=1, max_size=5, unique_by=lambda job: job.job_id),
    st.floats(1.0, 100.0),
    st.integers(0, 5),
    st.sampled_from(["srsf", "las", "srsf", "hadar"]),
    PLAIN,
)
@settings(max_examples=200, deadline=None)
def test_no_run_is_beyond_its_own_bound(
    drawn: list[JobSpec], share: float, seed: int, policy: str, plain: str
) -> None:
    """Nor the least bound, which a plot of the study has."""
    specs = tuple(sorted(drawn, key=lambda spec: spec.submitted_s))
    workload = StudyWorkload(name="drawn", specs=specs)
    choices = Overrides(policies=(plain, policy), seeds=(seed,), adoption=(share,))
    cells = adoption_cells(replace(a_cell(policy), workload=workload, cluster=CLUSTER), choices)
    records = [run_cell(cell) for cell in cells]
    assert {record["status"] for record in records} == {"done"}
    for group in groups(records):
        for figure in ("mean_jct", "ttd"):
            least_h = least_bound_h(group, figure)
            for entry in group.done:
                mean_s = sum(record[f"{figure}_s"] for record in entry.records)
                assert least_h <= mean_s / len(entry.records) / 3600.0 * (1 + 1e-6)
