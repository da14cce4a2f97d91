"""How many jobs the reaper, `hadar release --expired`, has restored.

Its own file, since the reaper could tear or lose lines of the journal in a rotation, and its
systemd unit may not write the journal. hadard reports the number after its restart.
"""

from __future__ import annotations

import json
from pathlib import Path

VERSION = 1
FILE_NAME = "expired.json"
# More jobs than a cluster ever has; readers of the journal accept no larger number either.
MOST = 10**9


def read_expired(state_dir: Path) -> int | None:
    """Return how many jobs were restored since `state_dir` was made; None: unknown."""
    try:
        tree = json.loads((state_dir / FILE_NAME).read_text(encoding="utf-8"))
        number = tree["released"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_valid = tree.get("version") == VERSION and type(number) is int and 0 <= number <= MOST
    return number if is_valid else None
