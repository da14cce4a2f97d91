"""What newer standard libraries have, for trainings under Python 3.9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import zip_longest
from typing import Any


class TextEnum(str, Enum):
    """An enumeration of texts that prints as its text, as enum.StrEnum of Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, form: str) -> str:
        return format(str(self.value), form)


def zip_equal(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows, as zip(strict=True) of Python 3.10: ValueError for columns of other lengths."""
    missing = object()
    for row in zip_longest(*columns, fillvalue=missing):
        if any(value is missing for value in row):
            raise ValueError("columns of different lengths")
        yield row
