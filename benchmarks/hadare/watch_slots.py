"""Print a JSON line for every slot of a forked training as it ends, until the training has.

    python watch_slots.py DIRECTORY

That is how a schedule is recorded that `replay.py` can train after: who was dealt which steps,
which of them were done, and when the parameters could be read. The last line has a digest of the
model.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from hadar_slurm.runtime.averaging.state import MODEL
from hadar_slurm.runtime.files.slots import Slots


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a number that differs for models that differ in a single bit."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Watch."""
    slots = Slots(Path(sys.argv[1]))
    last = -1
    while True:
        found = slots.newest() if (slots.directory / "slots").is_dir() else None
        if found is not None and found[0].slot > last:
            end, file = found
            last = end.slot
            told = {
                "slot": end.slot,
                "ended_s": file.path.stat().st_mtime,
                "done": end.done.pairs,
                "dealt": {copy: steps.pairs for copy, steps in end.dealt.items()},
            }
            print(json.dumps(told), flush=True)
            if end.is_complete:
                told = {name: file.tensor(name) for name in file.names if name.startswith(MODEL)}
                print(json.dumps({"digest": digest(told)}), flush=True)
                return
        time.sleep(0.2)


if __name__ == "__main__":
    main()
