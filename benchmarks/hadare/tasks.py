"""Two trainings that fit on one CPU core: images for a network with BatchNorm, and language.

All data are generated, the same everywhere. Both are hard enough to be still learning when the
budget of steps is spent: a single node with half of it ends with a loss at least 10 % higher
(`quality.py` measures that as well).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from hadar_slurm.runtime.copy import Copy

OPTIMISERS = ("sgd", "adam")
WARM_UP = 0.05  # of all steps
_CLIP = 1.0  # the norm of gradients


@dataclass(frozen=True, slots=True)
class Data:
    """Samples, and the classes that are right for them."""

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be learnt; `sgd` and `adam` are learning rates that suit one node."""

    network: Callable[[], nn.Module]
    train: Data
    held_out: Data
    batch_size: int
    sgd: float
    adam: float

    def make(self, optimiser: str, seed: int, rate: float = 1.0) -> tuple[nn.Module, Optimizer]:
        """Return a new network and its optimiser; `rate` is a factor of the learning rate."""
        torch.manual_seed(seed)
        network = self.network()
        if optimiser == "sgd":
            return network, SGD(network.parameters(), lr=self.sgd * rate, momentum=0.9)
        return network, Adam(network.parameters(), lr=self.adam * rate, fused=True)

    def step(
        self, copy: Copy, number: int, before_backward: Callable[[int], None] = lambda _: None
    ) -> None:
        """Train one step of a copy; `before_backward` is called with its number of samples."""
        rows = copy.samples(number, batch_size=self.batch_size, size=len(self.train.inputs))
        copy.model.train()
        loss = _loss(copy.model(self.train.inputs[rows]), self.train.targets[rows])
        copy.optimiser.zero_grad()
        before_backward(len(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(copy.model.parameters(), _CLIP)
        copy.optimiser.step()

    @torch.no_grad()
    def held_out_quality(self, network: nn.Module) -> tuple[float, float]:
        """Return the mean cross-entropy in nats, and the share of right answers."""
        network.eval()
        answers = network(self.held_out.inputs)
        right = answers.argmax(dim=-1) == self.held_out.targets
        return float(_loss(answers, self.held_out.targets)), float(right.float().mean())


def _loss(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(answers.flatten(0, -2), targets.flatten())


def cosine(total_steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step: a linear warm-up, then a half cosine to 0."""
    warm = max(1, round(WARM_UP * total_steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, total_steps - warm)))

    return factor


def constant(total_steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step: the same warm-up, then 1."""
    warm = max(1, round(WARM_UP * total_steps))
    return lambda step: min(1.0, (step + 1) / warm)


SCHEDULES = {"cosine": cosine, "constant": constant}


# Images: each class is some smooth patterns, which come shifted, scaled, and under noise.

_CLASSES, _PATTERNS, _SIDE, _NOISE = 10, 8, 12, 1.0


def _images(count: int, seed: int) -> Data:
    patterns = np.random.default_rng(11).normal(size=(_CLASSES * _PATTERNS, _SIDE, _SIDE))
    frequency = np.fft.fftfreq(_SIDE)
    low = np.exp(-((frequency[:, None] ** 2 + frequency[None] ** 2) / (2 * 0.13**2)))
    patterns = np.fft.ifft2(np.fft.fft2(patterns) * low).real
    patterns /= patterns.std(axis=(1, 2), keepdims=True)
    random = np.random.default_rng(seed)
    which = random.integers(len(patterns), size=count)
    shift = random.integers(-2, 3, size=(2, count))
    index = np.arange(_SIDE)
    down = (index[None] + shift[0][:, None]) % _SIDE
    right = (index[None] + shift[1][:, None]) % _SIDE
    shown = patterns[which[:, None, None], down[:, :, None], right[:, None, :]]
    shown = shown * random.uniform(0.6, 1.4, size=(count, 1, 1))
    shown = shown + _NOISE * random.normal(size=shown.shape)
    pixels = torch.from_numpy(shown.astype(np.float32))[:, None]
    return Data(pixels, torch.from_numpy(which // _PATTERNS))


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (_SIDE // 4) ** 2, _CLASSES))


# Language: letters of words, the words by a Markov chain over their kinds, in Zipf's proportions.

_LETTERS, _WORDS, _KINDS, _LENGTH = 27, 240, 8, 32


def _text(count: int, seed: int) -> Data:
    """Return `count` pieces of a text; what is right is each next letter."""
    random = np.random.default_rng(7)
    common = random.dirichlet(np.full(_LETTERS - 1, 0.7), size=4)
    words = [
        np.append(1 + random.choice(_LETTERS - 1, size=length, p=common[i % 4]), 0)
        for i, length in enumerate(random.integers(3, 9, size=_WORDS))
    ]
    follows = random.dirichlet(np.full(_KINDS, 0.25), size=_KINDS).cumsum(axis=1)
    zipf = (1.0 / np.arange(1, _WORDS // _KINDS + 1)).cumsum()
    zipf /= zipf[-1]
    random, need = np.random.default_rng(seed), count * _LENGTH + 1
    letters, kind = list[int](), 0
    while len(letters) < need:
        one, other = random.random(2)
        kind = min(int(np.searchsorted(follows[kind], one)), _KINDS - 1)
        letters += words[kind + _KINDS * int(np.searchsorted(zipf, other))].tolist()
    text = torch.tensor(letters[:need])
    return Data(text[:-1].view(count, _LENGTH), text[1:].view(count, _LENGTH))


class _Transformer(nn.Module):
    """Two blocks of causal attention over single letters."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(_LETTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(_LENGTH, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.last = nn.LayerNorm(width)
        self.out = nn.Linear(width, _LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next letter."""
        flow = self.letters(letters) + self.places
        for block in self.blocks:
            flow = block(flow)
        logits: torch.Tensor = self.out(self.last(flow))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.before(flow)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        flow = flow + self.merge(seen.transpose(1, 2).flatten(2))
        thought: torch.Tensor = self.think(self.between(flow))
        return flow + thought


@cache
def task(name: str) -> Task:
    """Return a task by its name, one of `TASKS`; raises KeyError for another."""
    return TASKS[name]()


TASKS: dict[str, Callable[[], Task]] = {
    "images": lambda: Task(
        _convolutions, _images(16_384, 1), _images(2_000, 2), 32, sgd=0.1, adam=1.5e-2
    ),
    "language": lambda: Task(_Transformer, _text(12_000, 1), _text(400, 2), 8, sgd=0.6, adam=9e-3),
}
