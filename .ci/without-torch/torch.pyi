# Stands in for torch where it is installed, so that the types are checked as without it, too.
from typing import Any

def __getattr__(name: str) -> Any: ...
