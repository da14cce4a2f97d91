"""Whether the simulator's jobs tune their batch sizes, and what is seen of those that do.

In the simulator it is the job that chooses its batch size, after every epoch: the one with the
greatest goodput by its own model of throughput, under whatever scheduler. `Cluster` has it switched
off for Gavel, and on for Sia.

Of a job that tunes, steps are no measure of work, since they differ in worth. Work counts in steps
of the initial batch size, as the simulator counts a job's progress: a step with another batch size
is worth several of these, by the gradient statistics of the epoch. Gavel gets the steps and the
step times that jobs with fixed batch sizes will have; likewise our policies get

* the work of a job and what is left of it, known from its epochs;
* its mean speed over the epochs left, on each type and placement: the goodput of each epoch at the
  best batch size there, by the simulator's goodput function, with measured step times and the
  gradient statistics of that epoch in the place of the job's models.

This is more than jobs can report, as are the steps of Gavel: gradient statistics of later epochs.
Without these, the speed is the goodput of the present epoch. It rises as a job trains, so the time
left is overestimated, most of all at a job's start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any


def keeping_batches(cluster: Any) -> type:
    """Return a subclass of the simulator's `Cluster` whose jobs do not tune their batch sizes."""

    class KeepsBatches(cluster):  # type: ignore[misc]
        """Has jobs keep their batch sizes, as the simulator does itself for Gavel."""

        def __init__(self, *words: object, **named: object) -> None:
            super().__init__(*words, **named)
            self.disable_bsz_tuning()

    return KeepsBatches


def tuning_batches(cluster: Any) -> type:
    """Return a subclass of the simulator's `Cluster` whose jobs tune theirs under Gavel too."""

    class TunesBatches(cluster):  # type: ignore[misc]
        """Leaves batch sizes to the jobs, as the simulator does for Sia, and shows useful work."""

        def disable_bsz_tuning(self) -> None:
            """Let the jobs tune; the simulator calls this for Gavel."""

        def get_gavel_job_info(self, job: Any) -> Any:
            info = super().get_gavel_job_info(job)
            info.epoch, info.progress, info.epochs = (
                job.epoch,
                job.progress,
                1 + job.completion_epoch,
            )
            info.total_steps = job.reference_app.get_progress(info.epochs)
            info.remain_steps = max(1.0, info.total_steps - job.progress)
            return info

    return TunesBatches


def useful_speed(
    goodput_function: Any, *, foresees: bool = True
) -> Callable[[Any, str, tuple[int, ...]], float]:
    """Return how fast a job that tunes does the work left, in steps/s of its initial batch size.

    `goodput_function` is the simulator's `GoodputFunction`. Without `foresees` the speed is that of
    the present epoch.
    """

    class Measured(goodput_function):  # type: ignore[misc]
        """The goodput of an epoch on a placement, by what the simulator then trains."""

        def __init__(self, application: Any, placement: tuple[int, ...], epoch: int) -> None:
            # Models of throughput and of gradients have seven and two parameters; none is read.
            super().__init__((0.0,) * 7, (0.0,) * 2, application.init_batch_size)
            self._application, self._placement, self._epoch = application, placement, epoch

        def throughput(
            self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any
        ) -> Any:
            step_s = atomic_bsz.astype(float)
            each = zip(atomic_bsz.flat, accum_steps.flat, strict=True)
            step_s.flat = [_step_s(self._application, self._placement, *of) for of in each]
            return num_replicas * atomic_bsz * (accum_steps + 1) / step_s

        def efficiency(self, batch_size: Any) -> Any:
            worth = batch_size.astype(float)
            worth.flat = [
                _worth(self._application, int(size), self._epoch) for size in batch_size.flat
            ]
            return worth

    @cache
    def times_s(application: Any, placement: tuple[int, ...], epochs: int) -> tuple[float, ...]:
        """Return how long a step of the initial batch size, or its worth, takes in each epoch."""
        num_gpus, largest = sum(placement), application.get_max_local_bsz(placement)
        if application.min_local_bsz * num_gpus > application.max_batch_size:
            return ()
        best = [
            Measured(application, placement, epoch).optimize(
                len(placement),
                num_gpus,
                application.max_batch_size,
                (application.min_local_bsz, largest),
                accumulation=True,
            )[0]
            for epoch in range(epochs)
        ]
        return tuple(application.init_batch_size / goodput for goodput in best) if all(best) else ()

    @cache
    def later_s(application: Any, placement: tuple[int, ...], epochs: int) -> tuple[float, ...]:
        """Return the time from the end of each epoch to the last, the last epoch first."""
        steps = [application.get_progress(epoch) for epoch in range(epochs + 1)]
        each = times_s(application, placement, epochs)
        spans = [each[at] * (steps[at + 1] - steps[at]) for at in range(epochs - 1, 0, -1)]
        return tuple(accumulate(spans, initial=0.0))

    def speed(info: Any, gpu_type: str, placement: tuple[int, ...]) -> float:
        application = info.applications[gpu_type]
        each = times_s(application, placement, info.epochs)
        if not each:
            return 0.0
        epoch = min(info.epoch, info.epochs - 1)
        if not foresees:
            return float(info.slowdown_factor / each[epoch])
        rest = max(1.0, application.get_progress(epoch + 1) - info.progress)
        left_s = rest * each[epoch] + later_s(application, placement, info.epochs)[-1 - epoch]
        return float(info.remain_steps / left_s * info.slowdown_factor)

    return speed


def _step_s(application: Any, placement: tuple[int, ...], atomic: int, accum: int) -> float:
    """Return the measured time of a step; infinite outside of what was measured."""
    step_s, sync_s = application.get_throughput(placement, int(atomic))
    if step_s <= 0:
        return float("inf")
    return float(step_s + accum * (step_s - sync_s))


def _worth(application: Any, batch_size: int, epoch: int) -> float:
    """Return what a sample is worth in an epoch, beside one at the initial batch size."""
    scale = batch_size / application.init_batch_size
    largest = min(batch_size, application.max_batch_size)
    squared, variance = application.get_grad_stats(largest, epoch)
    gain = (variance + squared) / (variance / scale + squared)
    return float(gain / scale)
