"""Averaging uses one thread of the processor, and training has its own again afterwards."""

from __future__ import annotations

import threading

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.files.threads import on_one_thread  # noqa: E402


@pytest.mark.parametrize("fails", [False, True])
def test_one_thread_computes_until_it_returns(fails: bool) -> None:
    """An error ends it too; the training that goes on beside it keeps its threads."""
    before, inside, outside = torch.get_num_threads(), threading.Event(), threading.Event()
    found = []

    @on_one_thread
    def average() -> None:
        found.append(torch.get_num_threads())
        inside.set()
        assert outside.wait(60)
        if fails:
            raise OSError

    def beside() -> None:
        try:
            average()
        except OSError:
            found.append(-1)
        found.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        worker = threading.Thread(target=beside)
        worker.start()
        assert inside.wait(60)
        assert torch.get_num_threads() == 3
        outside.set()
        worker.join(60)
        assert found == ([1, -1, 3] if fails else [1, 3])
        found.clear()
        if not fails:
            average()
            assert found == [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
