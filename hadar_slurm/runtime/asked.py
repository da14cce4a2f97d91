"""Lets a training of many processes save between two steps when hadard asks, on any nodes.

For torchrun on one node or many, in place of a `Copy`. A signal reaches the processes at different
steps; they agree on one by an `all_reduce` of one number. Python 3.9 and torch; see the section on
torchrun of docs/templates.md, and `job_templates/torchrun_nodes.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import distributed

from hadar_slurm import handoff

_REPORT_EVERY_S = 1.0
_POLL_S = 0.1


class Asked:
    """The signals that a job has received, as all of its processes know them.

    Make it in the main thread of every process, once they have met (`init_process_group`). Every
    process must make the same calls.
    """

    def __init__(self, every: int = 1, wait_s: float = 60.0) -> None:
        """Agree at every `every`-th step, and wait for a requeue for `wait_s` seconds."""
        self.every = every
        self.wait_s = wait_s
        self._received: set[int] = {0}
        self._step = 0
        # Of the first report since the training began or continued.
        self._first: tuple[int, float] | None = None
        self._reported_s = 0.0
        # One for all calls: a thread of gloo that frees the last one as Python ends would abort
        # the process (PyTorch's issue 190489).
        self._strongest: torch.Tensor | None = None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: self._received.add(number))

    def to_save(self, step: int) -> bool:
        """Report that `step` steps are done; return whether all processes have to save them now."""
        now_s = time.monotonic()
        self._step = step
        self._first = self._first or (step, now_s)
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            self._report("running")
            self._reported_s = now_s
        return step % self.every == 0 and self._agreed() > 0

    def has_saved(self) -> None:
        """Report the checkpoint; end the process if the job is requeued, and else return."""
        self._agreed()  # every process has written its part
        self._report("saved")
        # Not by the clock: all processes have to agree equally often.
        for _ in range(1 + int(self.wait_s / _POLL_S)):
            if self._agreed() == signal.SIGTERM:
                sys.exit(128 + signal.SIGTERM)
            time.sleep(_POLL_S)
        self._received.discard(signal.SIGUSR1)  # it was not hadard's
        self._first = None
        self._report("running")

    def done(self) -> None:
        """Report the end, after the last save; a late signal then ends no process."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._agreed()
        self._report("done")

    def _agreed(self) -> int:
        """Return the strongest signal of any process: TERM (15) before USR1 (10), or 0."""
        if not distributed.is_initialized():
            return max(self._received)
        if self._strongest is None:
            device = _gpu() if distributed.get_backend() == "nccl" else torch.device("cpu")
            self._strongest = torch.zeros((), dtype=torch.int64, device=device)
        self._strongest.fill_(max(self._received))
        distributed.all_reduce(self._strongest, distributed.ReduceOp.MAX)
        return int(self._strongest)

    def _report(self, state: str) -> None:
        """Report once for all processes."""
        if distributed.is_initialized() and distributed.get_rank() > 0:
            return
        step, since_s = self._first or (self._step, 0.0)
        ran_s = time.monotonic() - since_s
        handoff.tell(state, self._step, (self._step - step) / ran_s if ran_s > 0 else 0.0)


def _gpu() -> torch.device:
    """Return this process's own GPU, by `torch.cuda.set_device` or else by torchrun's variable."""
    chosen, local = torch.cuda.current_device(), int(os.environ.get("LOCAL_RANK") or 0)
    is_local = chosen == 0 and local < torch.cuda.device_count()
    return torch.device("cuda", local if is_local else chosen)
