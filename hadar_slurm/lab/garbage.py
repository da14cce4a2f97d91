"""How often Python looks for garbage: little is left, and many objects are looked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects after which Python looks for garbage; its own default of 700 is met in every round.
_COLLECT_AFTER = 50_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
