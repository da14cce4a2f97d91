"""The jobs of a run: gangs that train and may be migrated, and other kinds of jobs."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.world import Ran, World

# Steps/s of a whole gang.
RATES: tuple[Mapping[str, float], ...] = (
    {"v100": 40.0, "p100": 20.0, "k80": 10.0},
    {"v100": 30.0, "p100": 30.0, "k80": 12.0},
    {"v100": 20.0, "p100": 40.0, "k80": 20.0},
)
# GPUs of a type that hadard is not told of, and of none as the program names it.
NEW_TYPE = "gpu_of_2027"
OTHER_TYPES = (NEW_TYPE, "gpu")
STEPS = (60, 120, 200, 320)
ARRAY_TASKS = 3
# Jobs are drawn from these.
KINDS = ("gang",) * 5 + ("fixed", "deaf", "array", "plain", "after", "own signal")
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")

# Ignores USR1, so that its training never saves on request.
DEAF = """\
#!/bin/bash
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
trap '' USR1
"$HADAR_PYTHON" "$HADAR_TEMPLATES/paced_training.py" \\
    --checkpoint-dir "checkpoints/$SLURM_JOB_ID" "$@" &
wait $!
"""

# Says in sbatch's words alone that it saves on a signal and requeues itself.
OWN_SIGNAL = """\
#!/bin/bash
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@5
#SBATCH --requeue
finish() { kill -USR1 $pid; sleep 1; scontrol requeue $SLURM_JOB_ID; }
trap finish USR1
"$HADAR_PYTHON" "$HADAR_TEMPLATES/paced_training.py" \\
    --checkpoint-dir "checkpoints/$SLURM_JOB_ID" "$@" &
pid=$!
while :; do wait $pid; status=$?; kill -0 $pid 2> /dev/null || exit $status; done
"""


# The edit by which an owner holds a job that has no other hold.
HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Edit:
    """An owner's new value for a field of a job, and when the command began and ended.

    hadard may borrow a field that it has not borrowed at that time (`may_be_lent`), and has to give
    it back; otherwise the field is the owner's from then on.
    """

    value: str
    begun_s: float
    done_s: float
    may_be_lent: bool = False


@dataclass
class Task:
    """A submitted job or array task, and the actions of its user on it.

    `gpus` is the number that it must hold while it runs, `steps` the steps that it trains. Times
    are in seconds since the epoch. `may_be_cancelled`: its user's scancel failed or got no answer.
    `held_s` is the time of its user's hold, None without one, and `released_s` that of the last
    release. `named` and `excluded` are the nodes that its user names and excludes, `edits` what its
    user has changed in Slurm and not taken back, by field.
    """

    key: str
    kind: str
    gpus: int
    steps: int
    submitted_s: float
    user: str = ""
    cancelled_s: float | None = None
    may_be_cancelled: bool = False
    held_s: float | None = None
    released_s: float = 0.0
    named: str = ""
    excluded: str = ""
    done_to: list[str] = field(default_factory=list)
    edits: dict[str, Edit] = field(default_factory=dict)
    all_edits: list[tuple[str, Edit]] = field(default_factory=list)

    def note(self, name: str, edit: Edit) -> None:
        """Record an edit. Slurm 22.05.8 releases a held job whose nice value changes."""
        if name == "Nice":
            self.edits.pop(HOLD, None)
            self.released_s = edit.done_s
        self.edits[name] = edit
        self.all_edits.append((name, edit))

    def spans_of(self, name: str) -> list[tuple[float, float]]:
        """Return from when to when edits of a field were made."""
        return [(edit.begun_s, edit.done_s) for key, edit in self.all_edits if key == name]

    @property
    def is_described(self) -> bool:
        """Whether the job was submitted with hadar-sbatch."""
        return self.kind != "plain"


@dataclass
class Workload:
    """Keeps about `level` jobs in the queue while `is_open`."""

    world: World
    seed: int
    level: int
    tasks: dict[str, Task] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    is_open: bool = True
    # Slurm checks the dependency of a held job once a minute: too late near the end of a run.
    may_depend: bool = True

    def __post_init__(self) -> None:
        self._draw = random.Random(f"jobs of {self.seed}")
        self._lock = threading.Lock()
        self._scripts = {
            "deaf": self.world.script("deaf.sh", DEAF),
            "own signal": self.world.script("own_signal.sh", OWN_SIGNAL),
        }

    def feed(self, live: int) -> None:
        """Submit a job if fewer than `level` exist; `live` is their number."""
        with self._lock:
            if self.is_open and live < self.level:
                self.submit()

    def submit(self) -> None:
        """Submit the next job; if that fails, record the failure and drop the job."""
        draw = self._draw
        kind = draw.choice(KINDS)
        gpus = draw.choice((1, 1, 2, 2, 4))
        steps = draw.choice(STEPS)
        throughputs = draw.choice(RATES)
        user = draw.choice(self.world.users)
        before = draw.random()
        argv = self._argv(kind, gpus, steps, throughputs, before)
        at_s = time.time()
        done = self.world.run(argv, user=user)
        match = _SUBMITTED.search(done.out)
        if done.status != 0 or match is None:
            self._note_failure(done)
            return
        number = match[1]
        keys = [f"{number}_{i}" for i in range(ARRAY_TASKS)] if kind == "array" else [number]
        for key in keys:
            self.tasks[key] = Task(key, kind, gpus, steps, at_s, user)

    def _note_failure(self, done: Ran) -> None:
        self.failures.append((done.err or done.out).strip()[-300:])

    def _argv(
        self, kind: str, gpus: int, steps: int, throughputs: Mapping[str, float], before: float
    ) -> list[str]:
        rates = {**throughputs, **dict.fromkeys(OTHER_TYPES, min(throughputs.values()))}
        program = [
            *(f"--rate={name}={throughput / gpus}" for name, throughput in rates.items()),
            f"--total-steps={steps}",
            "--checkpoint-every-s=1",
            "--move-timeout-s=10",
        ]
        script = self._scripts.get(kind, self.world.training)
        if kind == "plain":
            own = [f"--gpus={gpus}", "--requeue", "--open-mode=append"]
            return [*self.world.sbatch_argv(with_hadar=False), *own, script, *program]
        told = ",".join(f"{name}={throughput}" for name, throughput in throughputs.items())
        own = [
            f"--hadar-throughput={told}",
            f"--hadar-gang={gpus}",
            f"--hadar-steps={steps}",
        ]
        if kind != "own signal":
            own.append(f"--hadar-checkpoint={'no' if kind == 'fixed' else 'yes'}")
        if kind == "array":
            own.append(f"--array=0-{ARRAY_TASKS - 1}")
        if (
            kind == "after"
            and self.may_depend
            and (others := [key for key in self.tasks if "_" not in key][-8:])
        ):
            own.append(f"--dependency=afterany:{others[int(before * len(others))]}")
        return [*self.world.sbatch_argv(with_hadar=True), *own, script, *program]
