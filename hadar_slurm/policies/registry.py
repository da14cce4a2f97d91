"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadar_slurm.lab.policies.a_srpt import AdaptiveSrpt
from hadar_slurm.lab.policies.e_las import Elas
from hadar_slurm.lab.policies.gavel_rounds import GAVEL_OBJECTIVES, Gavel
from hadar_slurm.lab.policies.greedy import las, srsf
from hadar_slurm.lab.policies.hare_offline import HareOffline
from hadar_slurm.lab.policies.hlas import Hlas
from hadar_slurm.lab.policies.sampling import Sampling
from hadar_slurm.lab.policies.tiresias import Tiresias
from hadar_slurm.policies.backfill import SlurmBackfill
from hadar_slurm.policies.fifo import YarnCapacity
from hadar_slurm.policies.hadar.policy import Hadar
from hadar_slurm.policies.hadar_paper.policy import HadarPaper
from hadar_slurm.policies.hadare.policy import Hadare
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.solver import SolverLimits

DEFAULT_POLICY = "hadar"

Maker = Callable[[str, SolverLimits], Policy]


def _gavel(objective: str) -> Maker:
    return lambda _, limits: Gavel(objective)


_MAKERS: Mapping[str, Maker] = {
    "hadar": lambda _, limits: Hadar(limits=limits),
    "hadar-paper": lambda utility, limits: HadarPaper(utility=utility, limits=limits),
    "hadare": lambda _, limits: Hadare(limits=limits),
    **{f"gavel-{objective}": _gavel(objective) for objective in GAVEL_OBJECTIVES},
    "tiresias": lambda _, limits: Tiresias(),
    "hare-offline": lambda _, limits: HareOffline(),
    "hlas": lambda _, limits: Hlas(),
    "e-las": lambda _, limits: Elas(),
    "a-srpt": lambda _, limits: AdaptiveSrpt(),
    "sampling": lambda _, limits: Sampling(limits=limits),
    "yarn-cs": lambda _, limits: YarnCapacity(),
    "srsf": lambda _, limits: srsf(),
    "las": lambda _, limits: las(),
    "slurm": lambda _, limits: SlurmBackfill(),
}

POLICY_NAMES = tuple(_MAKERS)


def make_policy(
    name: str, *, utility: str = "throughput", limits: SolverLimits | None = None
) -> Policy:
    """Return the policy called `name`; raises KeyError for a name not in `POLICY_NAMES`.

    `utility` is for hadar-paper alone; others have their objective in their name.
    """
    return _MAKERS[name](utility, limits or SolverLimits())
