"""How many jobs the reaper, `hadar release --expired`, has given back.

A number in a file of its own: the journal is hadard's, whose lines the reaper could tear or lose in
a rotation, and which its systemd unit may not write. hadard tells the number once it is back.
"""

from __future__ import annotations

import json
from pathlib import Path

from hadar_slurm import untrusted_files

VERSION = 1
FILE_NAME = "expired.json"
# More than a cluster ever has jobs; whoever reads the journal takes no larger number either.
_MOST = 10**9


def read_expired(state_dir: Path) -> int | None:
    """Return how many jobs were given back since `state_dir` was made; None: it cannot be told."""
    try:
        tree = json.loads((state_dir / FILE_NAME).read_text(encoding="utf-8"))
        number = tree["released"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_ours = tree.get("version") == VERSION and type(number) is int and 0 <= number <= _MOST
    return number if is_ours else None


def add_expired(state_dir: Path, jobs: int) -> None:
    """Count jobs that were given back; raises OSError, with nothing changed, when it cannot.

    What cannot be read begins anew. Only one `hadar release` at a time may call this.
    """
    if not jobs:
        return
    number = min((read_expired(state_dir) or 0) + jobs, _MOST)
    content = json.dumps({"version": VERSION, "released": number}) + "\n"
    with untrusted_files.directory(state_dir) as place:
        # Readable by hadard also when root has released.
        untrusted_files.replace(FILE_NAME, content.encode(), mode=0o644, dir_fd=place)
