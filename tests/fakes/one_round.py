"""Prints what hadard loads of hadar_slurm: at its start, and with one round of mode steer.

As JSON: the number of keys of hadar.yaml, and the files loaded. The round is on a fake Slurm, with
more jobs than GPUs, so that starts are foreseen. A round of mode hold loads beside it what
its pins need.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from hadar_slurm import config
from hadar_slurm.daemon.main import main
from hadar_slurm.policies.registry import DEFAULT_POLICY, make_policy

JOB = {
    "hadar": 1,
    "workload": "ResNet-50 (batch size 64)",
    "steps": 10**6,
    "checkpoint": True,
    "steered": True,
}


def loaded() -> set[str]:
    """Return the files of hadar_slurm's modules that are loaded."""
    own = (m for name, m in sys.modules.items() if name.partition(".")[0] == "hadar_slurm")
    return {module.__file__ for module in own if module.__file__}


def one_round(directory: Path) -> None:
    """Run hadard --once in mode steer."""
    from fakes.fake_slurm import Asked, FakeSlurm
    from fakes.fake_tools import FakeRunner

    from hadar_slurm.daemon.world import World
    from hadar_slurm.slurm.client.command_line import CommandLine

    places = "".join(f"{name}: {directory}/{name}\n" for name in ("spool_dir", "state_dir"))
    files = f"run_dir: {directory}\njournal: {directory}/journal\nslurm_conf: {directory}/conf\n"
    (directory / "hadar.yaml").write_text(f"mode: steer\n{places}{files}")
    (directory / "conf").touch()
    slurm = FakeSlurm("v100:2,k80:2,p100:2", version=(24, 11, 5))
    slurm.name = f"fake-{os.getpid()}"  # other tests may run at the same time
    for gpus in (1, 2) * 4:
        asked = Asked(per_node=(("", gpus),), max_nodes=1)
        slurm.submit(asked, comment=json.dumps({**JOB, "gpus": gpus}), limit_min=600)

    def now_s() -> float:
        slurm.advance(0.2)
        return slurm.now_s

    world = World(now_s=now_s, make_adapter=lambda *_: CommandLine(FakeRunner(slurm=slurm)))
    assert main(["--config", str(directory / "hadar.yaml"), "--once"], world) == 0
    assert any(job.excluded for job in slurm.jobs), "nothing was steered"


make_policy(DEFAULT_POLICY)
found = {"start": loaded()}
import fakes.fake_tools  # noqa: E402, F401

of_fakes = loaded() - found["start"]
with tempfile.TemporaryDirectory() as place:
    one_round(Path(place))
found["steer"] = loaded() - of_fakes
sections = [s for s in vars(config).values() if getattr(s, "__module__", "") == config.__name__]
keys = sum(len(getattr(section, "model_fields", ())) for section in sections)
print(json.dumps({"keys": keys, "files": {name: sorted(files) for name, files in found.items()}}))
