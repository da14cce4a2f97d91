"""The cost of migrating a job, in seconds: one figure for all, or one per model.

The preset `sia` has the penalties that Sia's scheduler uses (SOSP'23, artifact at commit aaf7a0d;
`ResNet-50` is ImageNet, `ResNet-18` is CIFAR-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.errors import UsageError
from hadar_slurm.jobspec.units import parse_number

PRESETS: Mapping[str, str] = {
    "sia": "30,DeepSpeech2=25,ResNet-50=250,ResNet-18=30,BERT=120,YOLOv3=45",
}


@dataclass(frozen=True, slots=True)
class RestartCosts:
    """Seconds by model; a model is a prefix of the workload's name, without case."""

    default_s: float = 30.0
    by_model: Mapping[str, float] = field(default_factory=dict)

    def of(self, workload: str) -> float:
        """Return the cost of migrating a job of `workload`, by the longest matching model."""
        name = workload.lower()
        fits = [model for model in self.by_model if name.startswith(model.lower())]
        return self.by_model[max(fits, key=len)] if fits else self.default_s


def restart_words(costs: str) -> str:
    """Return costs as they are written on the command line, with their unit unless a preset."""
    return f"{costs}'s" if costs in PRESETS else f"{costs} s"


def parse_restart_costs(text: str, what: str = "--restart-seconds") -> RestartCosts:
    """Return the costs in `30`, `30,ResNet-50=250,...` or a preset's name; `what` is for errors.

    Raises UsageError with the invalid part.
    """
    default_s = RestartCosts().default_s
    by_model: dict[str, float] = {}
    for part in PRESETS.get(text.strip(), text).split(","):
        model, is_model, cost = part.strip().rpartition("=")
        if is_model and not model.strip():
            raise UsageError(f"{what}: {part!r}: expected MODEL=SECONDS, such as ResNet-50=250")
        cost_s = parse_number(cost, f"{what}: restart cost", UsageError)
        if is_model:
            by_model[model.strip()] = cost_s
        else:
            default_s = cost_s
    return RestartCosts(default_s, by_model)
