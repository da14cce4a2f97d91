"""Few images: trainings that learn their data by heart, several at once as one network.

A member of the stack is a network of two dense layers with BatchNorm, of a seed of its own, with
that seed's training data and a weight decay. Members share no parameter and no sample; what the
copies average, they average for each by itself. So one run trains all seeds, each as it would
train alone, but for the order of samples, which is that of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tasks import Data, _images
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from hadar_slurm.runtime.copy import Copy

IMAGES, BATCH_SIZE = 2_048, 32
SEEDS = 8  # have training data of their own
RATES = {"sgd": 0.1, "adam": 5e-3}
_PIXELS, _WIDTH, _CLASSES = 144, 96, 10
_CLIP = 1.0  # the norm of each member's gradients


@dataclass(frozen=True, slots=True)
class Member:
    """One training of a stack; `decay` is its weight decay.

    With SGD the decay is added to the gradients, with Adam it is decoupled (AdamW).
    """

    seed: int
    decay: float = 0.0


@cache
def train_data() -> Data:
    """Return the images of all seeds, as [seed, image, pixel]."""
    found = _images(SEEDS * IMAGES, 1)
    return Data(found.inputs.view(SEEDS, IMAGES, _PIXELS), found.targets.view(SEEDS, IMAGES))


@cache
def held_out() -> Data:
    """Return the images that judge."""
    return _images(2_000, 2)


@cache
def validation() -> Data:
    """Return the images that choose when to stop and which weight decay; they judge nothing."""
    return _images(1_000, 3)


class Stack(nn.Module):
    """The networks of all members; from [member, sample, pixel] to logits."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        layers = [_layers(member.seed) for member in members]
        self.first = nn.Parameter(torch.stack([first for first, _, _ in layers]))
        self.norm = nn.BatchNorm1d(len(members) * _WIDTH)
        self.last = nn.Parameter(torch.stack([last for _, last, _ in layers]))
        self.bias = nn.Parameter(torch.stack([bias for _, _, bias in layers]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits, as [member, sample, class]."""
        members, samples, _ = inputs.shape
        hidden = torch.bmm(inputs, self.first).transpose(0, 1).reshape(samples, -1)
        hidden = self.norm(hidden).relu().view(samples, members, _WIDTH).transpose(0, 1)
        return torch.baddbmm(self.bias, hidden, self.last)


def _layers(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    first, last = nn.Linear(_PIXELS, _WIDTH, bias=False), nn.Linear(_WIDTH, _CLASSES)
    return first.weight.detach().T, last.weight.detach().T, last.bias.detach()[None]


class FewImages:
    """The training of a stack by one optimiser, "sgd" or "adam"."""

    def __init__(self, members: Sequence[Member], optimiser: str) -> None:
        self.members, self.is_decoupled = members, optimiser == "adam"
        self.network = Stack(members)
        parameters, rate = self.network.parameters(), RATES[optimiser]
        self.optimiser: Optimizer = (
            Adam(parameters, rate, fused=True)
            if self.is_decoupled
            else SGD(parameters, rate, momentum=0.9, fused=True)
        )
        seeds = [member.seed for member in members]
        self.train = Data(train_data().inputs[seeds], train_data().targets[seeds])
        self.decays = torch.tensor([member.decay for member in members])

    def step(self, copy: Copy, number: int) -> None:
        """Train one step of a copy: of each member, on its own images."""
        rows = copy.samples(number, batch_size=BATCH_SIZE, size=IMAGES)
        copy.model.train()
        answers = copy.model(self.train.inputs[:, rows])
        losses = _losses(answers, self.train.targets[:, rows])
        copy.optimiser.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._clip_and_decay(copy.optimiser)
        copy.optimiser.step()

    @torch.no_grad()
    def _clip_and_decay(self, optimiser: Optimizer) -> None:
        """Clip each member's gradients by their norm, and apply its weight decay."""
        (group,) = optimiser.param_groups
        # A row for each member.
        rows = [
            (each.view(len(self.members), -1), each.grad.view(len(self.members), -1))
            for each in group["params"]
        ]
        norms = torch.stack([grad.square().sum(dim=1) for _, grad in rows]).sum(dim=0).sqrt()
        factors = (_CLIP / (norms + 1e-6)).clamp(max=1.0)[:, None]
        for value, grad in rows:
            grad.mul_(factors)
            if self.is_decoupled:
                value.mul_(1.0 - group["lr"] * self.decays[:, None])
            else:
                grad.addcmul_(value, self.decays[:, None])


@torch.no_grad()
def quality(network: nn.Module, members: int, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each member the mean cross-entropy in nats and the share of right answers."""
    network.eval()
    answers = network(data.inputs.view(1, -1, _PIXELS).expand(members, -1, -1))
    targets = data.targets.expand(members, -1)
    right = (answers.argmax(dim=-1) == targets).float().mean(dim=1)
    return _losses(answers, targets), right


def _losses(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each member's mean loss in nats."""
    each = cross_entropy(answers.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(len(answers), -1).mean(dim=1)


def keep_members(kept: Mapping[str, torch.Tensor], network: nn.Module, which: torch.Tensor) -> None:
    """Copy the state of some members, given as a mask, into a state that was kept."""
    for name, value in network.state_dict().items():
        if value.dim():  # not BatchNorm's count of batches
            kept[name].view(len(which), -1)[which] = value.view(len(which), -1)[which]
