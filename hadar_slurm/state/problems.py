"""What keeps hadard from doing all of its work, such as a journal that it cannot write.

hadard goes on without; the heartbeat carries these to `hadar status` and to /metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

log = logging.getLogger(__name__)


class Problem(StrEnum):
    """The kinds; each is a value of the label `kind` of the metric `hadar_problem`."""

    JOURNAL = "journal"
    PROFILE = "profile"
    LEDGER = "ledger"
    SPOOL = "spool"
    REPORTS = "reports"
    ASSIGNMENTS = "assignments"


@dataclass
class Problems:
    """The problems of one daemon, by kind; a change is logged once."""

    _texts: dict[Problem, str] = field(default_factory=dict)

    def set(self, kind: Problem, text: str) -> None:
        """Record a problem; `text` names the value and the remedy. An empty text: it is solved."""
        if not text:
            if self._texts.pop(kind, None) is not None:
                log.info("%s: solved", kind)
        elif self._texts.get(kind) != text:
            self._texts[kind] = text
            log.error("%s: %s", kind, text)

    @property
    def texts(self) -> Mapping[str, str]:
        """Return the text of each problem there is now, by kind."""
        return {str(kind): text for kind, text in sorted(self._texts.items())}
