"""YAML files that people write: checked values, and errors with line, key and value.

All scalars are read as text, and the fields' types convert them, so that `on` and 1e5 can be names.
"""

from __future__ import annotations

import difflib
import reprlib
from dataclasses import dataclass
from typing import Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from hadar_slurm.errors import ConfigError

_MAX_FAULTS = 10
# Keys and indices from the root.
_Place = tuple[int | str, ...]


class Section(BaseModel):
    """A mapping of a file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class YamlFile(Generic[M]):
    """The values of a file, and where they stand in it."""

    value: M
    origin: str
    root: yaml.Node | None

    def place(self, *keys: int | str) -> str:
        """Return `file:line` of the node at these keys and indices, or of its nearest parent."""
        return f"{self.origin}:{_line(self.root, keys)}"


def parse_yaml(
    text: str, origin: str, whole: type[M], entry: type[Section], *, what: str, expected: str
) -> YamlFile[M]:
    """Return YAML `text` as a `whole`, which has a list of `entry`.

    `origin` names the file in errors, `what` its kind, and `expected` describes what it has to
    contain. Raises ConfigError with line, key, value and the values accepted.
    """
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
        tree = _tree(root, origin)
    except RecursionError as error:
        raise ConfigError(f"{origin}: nested too deeply for a {what}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from error
    if not (
        isinstance(tree, list) and tree if issubclass(whole, RootModel) else isinstance(tree, dict)
    ):
        raise ConfigError(f"{origin}: expected {expected}")
    try:
        return YamlFile(whole.model_validate(tree), origin, root)
    except ValidationError as error:
        found = error.errors(include_url=False)[:_MAX_FAULTS]
        sections = whole, entry
        faults = (_fault(fault["loc"], fault, sections, root, origin) for fault in found)
        raise ConfigError("; ".join(faults)) from error


def _tree(node: yaml.Node | None, origin: str) -> object:
    """Return a YAML node as values, all scalars as text; a key given twice is an error."""
    if isinstance(node, yaml.SequenceNode):
        return [_tree(item, origin) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        return None if node is None else node.value
    tree: dict[str, object] = {}
    for key, value in node.value:
        here = f"{origin}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{here}: expected a name as key")
        if key.value in tree:
            raise ConfigError(f"{here}: {key.value!r} is given twice; keep one")
        tree[key.value] = _tree(value, origin)
    return tree


def _fault(
    place: _Place,
    fault: object,
    sections: tuple[type[BaseModel], type[BaseModel]],
    root: yaml.Node | None,
    origin: str,
) -> str:
    assert isinstance(fault, dict)
    key = ".".join(str(step + 1) if isinstance(step, int) else step for step in place)
    here = f"{origin}:{_line(root, place)}"
    if fault["type"] == "missing":
        return f"{here}: key {key!r} is missing"
    if fault["type"] != "extra_forbidden":
        return f"{here}: {key}: {fault['msg']}, not {reprlib.repr(fault['input'])}"
    section = sections[len(place) > 1]
    near = difflib.get_close_matches(str(place[-1]), section.model_fields, n=1, cutoff=0.0)
    return f"{here}: unknown key {key!r}; the nearest known one is {near[0]!r}"


def _line(root: yaml.Node | None, place: _Place) -> int:
    """Return the line, from 1, of the node at `place`, or of its nearest parent."""
    node, line = root, 1
    for step in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = next((pair for pair in pairs if pair[0].value == str(step)), None)
        if found is None:
            break
        node, line = found[1], found[0].start_mark.line + 1
    return line
