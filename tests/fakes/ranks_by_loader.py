"""A script for torchrun whose processes are one copy and train by an ordinary data loader.

    torchrun --standalone --nproc-per-node=2 ranks_by_loader.py DIRECTORY

Each process writes the indices of its samples to DIRECTORY/rank-R, one line for each epoch, and its
parameters to DIRECTORY/final-R.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.membership.surroundings import Surroundings

SIZE, EPOCHS = 42, 2


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(5))
    numbers: Any = range(SIZE)
    loader: Any = DataLoader(numbers, 5, sampler=DistributedSampler(numbers), num_workers=1)
    room = Path(sys.argv[1])
    where = Surroundings(copy=0, directory=room / "job", rank=rank, ranks=ranks)
    copy = Copy(model, optimiser, total_steps=EPOCHS * len(loader), surroundings=where)
    for _ in range(EPOCHS):
        seen: list[int] = []
        for rows in copy.loader(loader):
            nn.functional.cross_entropy(model(inputs[rows]), rows % 2).backward()
            optimiser.step()
            optimiser.zero_grad()
            seen += rows.tolist()
        with (room / f"rank-{rank}").open("a") as told:
            told.write(" ".join(map(str, seen)) + "\n")
    torch.save(copy.model.state_dict(), room / f"final-{rank}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
