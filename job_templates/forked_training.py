"""A PyTorch training that may run in copies on several nodes at once (HadarE).

Start your own from here: what that needs of a program is marked with "hadar:", the rest is an
ordinary loop over a small network and made-up data, on a GPU where there is one. Alone it trains as
any other. Needs `pip install hadar_slurm[torch]`.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from hadar_slurm.runtime.copy import Copy  # hadar:

BATCH_SIZE = 32


def main() -> None:
    """Train to --total-steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=2000)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make a batch last longer")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    inputs = torch.randn(4096, 16)
    labels = (inputs[:, :4].sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with Copy(model, optimiser, total_steps=options.total_steps) as copy:  # hadar:
        for step in copy.steps():  # hadar: instead of range(total_steps)
            rows = copy.samples(step, batch_size=BATCH_SIZE, size=len(inputs))  # hadar:
            time.sleep(options.step_seconds * len(rows) / BATCH_SIZE)
            outputs = model(inputs[rows].to(device))
            loss = nn.functional.cross_entropy(outputs, labels[rows].to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    # hadar: every copy comes here when all the steps are done, and has the same model.
    accuracy = (model(inputs.to(device)).argmax(dim=1).cpu() == labels).float().mean()
    print(f"{options.total_steps} steps, accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main()
