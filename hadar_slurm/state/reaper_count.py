"""How many jobs the reaper, `hadar release --expired`, has restored.

Its own file, since the reaper could tear or lose lines of the journal in a rotation, and its
systemd unit may not write the journal. hadard reports the number after its restart.
"""

from __future__ import annotations

import json
from pathlib import Path

from hadar_slurm import untrusted_files

VERSION = 1
FILE_NAME = "expired.json"
# More jobs than a cluster ever has; readers of the journal accept no larger number either.
_MOST = 10**9


def read_expired(state_dir: Path) -> int | None:
    """Return how many jobs were restored since `state_dir` was made; None: unknown."""
    try:
        tree = json.loads((state_dir / FILE_NAME).read_text(encoding="utf-8"))
        number = tree["released"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_valid = tree.get("version") == VERSION and type(number) is int and 0 <= number <= _MOST
    return number if is_valid else None


def add_expired(state_dir: Path, jobs: int) -> None:
    """Count restored jobs; raises OSError, with nothing changed, when it cannot.

    A count that cannot be read restarts at 0. Only one `hadar release` at a time may call this.
    """
    if not jobs:
        return
    number = min((read_expired(state_dir) or 0) + jobs, _MOST)
    content = json.dumps({"version": VERSION, "released": number}) + "\n"
    with untrusted_files.directory(state_dir) as place:
        # Readable by hadard also when root has released.
        untrusted_files.replace(FILE_NAME, content.encode(), mode=0o644, dir_fd=place)
