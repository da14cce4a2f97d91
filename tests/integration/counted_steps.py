"""A training that counts its steps, for tests of moves: it knows nothing of hadard."""

from __future__ import annotations

from collections import Counter

from integration.site import Site

from hadar_slurm.core.cluster import JobId

# So that hadard knows the speeds, and a move always pays.
KNOWN = ("--hadar-throughput=v100=60,k80=1", "--hadar-gang=1", "--hadar-steps=1000000")
# On its signal it dies, ignores it, goes on, or exits with a status, by its arguments.
_PROGRAM = """
import os, pathlib, signal, sys, time

job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
state, trained = pathlib.Path(job + ".state"), pathlib.Path(job + ".trained")
step = int(state.read_text()) if state.exists() else 0
asked = []
if sys.argv[1] != "dies":
    signal.signal(signal.{signal}, lambda *_: asked.append(1))
while step < {steps}:
    time.sleep(0.1)
    step += 1
    with trained.open("a") as file:
        print(step, node, file=file)
    heeds = asked and sys.argv[1] != "ignores"
    if heeds or step % {every} == 0:
        draft = state.with_suffix(".new")
        draft.write_text(str(step))
        draft.replace(state)
    if heeds:
        with pathlib.Path(job + ".signals").open("a") as file:
            print(*asked, node, file=file)
        asked.clear()
        if sys.argv[1] == "exits":
            sys.exit(int(sys.argv[2]))
pathlib.Path(job + ".done").write_text(node)
"""


def write_program(site: Site, *, steps: int, signal: str, every: int) -> None:
    """Write the program, `train.py`: it saves on a signal, and every `every` steps."""
    text = _PROGRAM.format(steps=steps, signal=signal, every=every)
    (site.directory / "train.py").write_text(text)


def trained(site: Site, job: JobId) -> tuple[Counter[int], list[str]]:
    """Return how often each step was trained, and the nodes, in order."""
    path = site.directory / f"{job}.trained"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(int(step) for step, _ in lines), list(dict.fromkeys(node for _, node in lines))
