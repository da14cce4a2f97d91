"""Jobs whose copies are separate programs (train_copy.py), so that they can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots

PROGRAM = Path(__file__).with_name("train_copy.py")
LIMIT_S = 300.0


@dataclass
class Training:
    """A job in a directory, and its started copies."""

    directory: Path
    total_steps: int
    options: tuple[str, ...] = ()
    program: Path = PROGRAM
    copies: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def start(self, copy: int, *options: str, ranks: int = 1) -> None:
        """Start a copy, through torchrun if `ranks` > 1; each further start counts as a restart."""
        words = [sys.executable]
        if ranks > 1:
            # Ignores USR1, as if a batch script had started it.
            words = ["sh", "-c", "trap '' USR1; exec \"$@\"", "-", *words]
            words += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words += [str(self.program), str(self.directory), str(copy)]
        restart = self.starts.get(copy, -1) + 1
        self.starts[copy] = restart
        words += [str(self.total_steps), f"--restart={restart}", *self.options, *options]
        self.copies[copy] = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def hold(self, *copies: int, options: tuple[str, ...] = ()) -> Path:
        """Start copies that join the job at the same time, once the returned file exists."""
        go = self.directory.with_suffix(f".go-{copies[0]}")
        for copy in copies:
            (self.directory / f"ready-{copy}").unlink(missing_ok=True)
            self.start(copy, "--go", str(go), *options)
        until(lambda: all((self.directory / f"ready-{copy}").exists() for copy in copies))
        return go

    def start_together(self, *copies: int) -> None:
        """Start copies that join the job at the same time, once all are ready."""
        self.hold(*copies).touch()

    def end(self, copy: int, status: int | None = 0) -> str:
        """Wait until a copy ends with `status` (None: any), and return its standard error."""
        process = self.copies.pop(copy)
        _, said = process.communicate(timeout=LIMIT_S)
        assert status in (None, process.returncode), said
        return said

    def kill(self, copy: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a copy a signal."""
        self.copies[copy].send_signal(number)

    def stop(self) -> None:
        """End all copies by SIGTERM, since a killed torchrun does not end its processes."""
        for process in self.copies.values():
            process.terminate()
        for process in self.copies.values():
            try:
                process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def steps(self, copy: int | str) -> list[int]:
        """Return the steps that a copy has trained."""
        path = self.directory / f"steps-{copy}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[0]) for line in lines]

    def here(self) -> set[str]:
        """Return the copies that are present in the job's directory."""
        return {path.name for path in self.directory.glob("copies/*")}

    def newest(self) -> SlotEnd:
        """Return the end of the newest slot."""
        found = Slots(self.directory).newest()
        assert found is not None
        return found[0]

    def has_ended(self, slot: int) -> bool:
        """Return whether a slot, or a later one, has ended."""
        ends = self.directory.joinpath("slots").glob("slot-????????.safetensors")
        return any(int(path.name[5:13]) >= slot for path in ends)

    def final(self, copy: int | str) -> dict[str, Any]:
        """Return the parameters at the end of a copy."""
        tensors: dict[str, Any] = load_file(self.directory / f"final-{copy}.safetensors")
        return tensors

    def check(self, *copies: int | str) -> None:
        """Check that the job is done and that the final parameters of these copies are equal."""
        assert self.newest().done == Ranges.of([(0, self.total_steps)])
        one, *others = (self.final(copy) for copy in copies)
        for other in others:
            assert all(bool((one[name] == other[name]).all()) for name in one)


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "in vain"
        time.sleep(0.02)
