"""Write the manual pages: what the commands say of themselves, and pages.toml for the rest.

    python docs/man/generate.py     # or: make man

Options, their types and defaults come from the commands, keys from hadar.yaml, tables from docs/.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo
from typer.utils import get_params_from_function

from hadar_slurm import __version__
from hadar_slurm.cli.main import COMMANDS, version
from hadar_slurm.config import DEFAULT_PATH, Config, SolverConfig
from hadar_slurm.daemon.options import option_parser as daemon_parser
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.resources import operators_file
from hadar_slurm.submit.request import USAGE

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
SUMMARY = "Heterogeneity-aware GPU scheduling for an unmodified Slurm."
_SECTIONS = {1: "User commands", 5: "File formats", 8: "Administration"}
# With more options than this the synopsis does not name each.
_MOST_IN_SYNOPSIS = 8
_WIDTH = 80


# Roff.

_LETTERS = {
    "\\": r"\(rs",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    '"': r"\(dq",
}


def exact(text: str) -> str:
    """Return roff that shows `text` as it is to be typed."""
    return "".join(_LETTERS.get(c) or (c if c.isascii() else f"\\[u{ord(c):04X}]") for c in text)


# Names that are to be typed: no line ends at their hyphens.
_NAME = re.compile("|".join(sorted((n for n in POLICY_NAMES if "-" in n), reverse=True)))


def prose(text: str) -> str:
    """Return roff for running text, in which a hyphen is one."""
    shown = exact(text).replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\(dq", '"')
    return _NAME.sub(lambda match: exact(match[0]), shown)


def bold(text: str) -> str:
    """Return roff for what is typed as it is."""
    return rf"\fB{exact(text)}\fR"


def italic(text: str) -> str:
    """Return roff for what stands for something else."""
    return rf"\fI{exact(text)}\fR"


_LINK_ALONE = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_MARKED = re.compile(
    r"``?(?P<code>[^`]+)``?|\*(?P<weak>[^*]+)\*|(?<![\w-])(?P<option>--[a-z][a-z-]*[a-z])"
    r"|(?P<page>\b[a-z][\w.-]*)\((?P<section>[158])\)"
)


def marked(text: str, metavars: Iterable[str] = ()) -> str:
    """Return roff for words of ours: code, options and pages in bold, what stands for them italic.

    Links to other documents are left out, or are their text.
    """
    text = _LINK.sub(r"\1", _LINK_ALONE.sub("", " ".join(text.split())))
    out, end = [], 0
    for match in _MARKED.finditer(text):
        out += [_with_metavars(text[end : match.start()], metavars), _mark(match)]
        end = match.end()
    return "".join([*out, _with_metavars(text[end:], metavars)])


def _mark(match: re.Match[str]) -> str:
    if match["weak"]:
        return italic(match["weak"])
    if match["page"]:
        return f"{bold(match['page'])}({match['section']})"
    return bold((match["code"] or match["option"]).replace("\\|", "|"))


def _with_metavars(text: str, metavars: Iterable[str]) -> str:
    words = re.split(r"\b([A-Z]{3,}|MB|S)\b", text)
    return "".join(italic(w) if w in set(metavars) else prose(w) for w in words)


def filled(text: str) -> list[str]:
    """Return lines of the source: short, and none that begins like a request."""
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [rf"\&{line}" if line.startswith((".", "'")) else line for line in lines]


def item(tags: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return an entry of a list: what it is called, and its paragraphs."""
    lines = [".TP", tags[0]]
    for tag in tags[1:]:
        lines += [".TQ", tag]
    for number, text in enumerate(texts):
        lines += [*([".IP"] if number else []), *filled(text)]
    return lines


# What a command takes.


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option, or with no names an argument: in words, what it is and what it is by default."""

    names: tuple[str, ...]
    metavar: str
    help: str
    kind: str = ""
    default: str = ""

    @property
    def tag(self) -> str:
        """Return roff for the beginning of its entry."""
        if not self.names:
            return italic(self.metavar.strip("[]"))
        names = ", ".join(map(bold, self.names))
        return f"{names} {italic(self.metavar)}" if self.metavar else names

    @property
    def usage(self) -> str:
        """Return roff for it in a synopsis."""
        if self.names:
            value = rf"\~{italic(self.metavar)}" if self.metavar else ""
            return f"[{'|'.join(map(bold, self.names))}{value}]"
        word = self.metavar.strip("[]").removesuffix("...")
        shown = italic(word) + (r"...\&" if self.metavar.endswith("...") else "")
        return f"[{shown}]" if self.metavar.startswith("[") else shown


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words, what it says of itself, what it takes, and its statuses beside 0 to 2.

    `title` is its first sentence.
    """

    words: str
    title: str
    paragraphs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    statuses: Mapping[int, str]

    @property
    def summary(self) -> str:
        """Return what NAME says."""
        return _as_summary(self.title)

    @property
    def metavars(self) -> set[str]:
        """Return what stands for values of options and arguments."""
        return {p.metavar.strip("[].") for p in self.parameters}

    def synopsis(self) -> list[str]:
        """Return the lines of its synopsis."""
        options = [p.usage for p in self.parameters if p.names]
        if len(options) > _MOST_IN_SYNOPSIS:
            options = [rf"[{italic('OPTION')}]...\&"]
        usages = [*options, *(p.usage for p in self.parameters if not p.names)]
        return [f".SY {exact(self.words).replace(' ', chr(92) + '~')}", *usages, ".YS"]

    def description(self) -> list[str]:
        """Return its paragraphs."""
        shown = [filled(marked(text, self.metavars)) for text in self.paragraphs]
        return [line for text in shown for line in (".PP", *text)][1:]

    def options(self) -> list[str]:
        """Return the list of what it takes: arguments first."""
        ordered = sorted(self.parameters, key=lambda p: bool(p.names))
        return [line for p in ordered for line in self._option(p)]

    def _option(self, parameter: Parameter) -> list[str]:
        text = marked(_capital(_sentence(parameter.help)), self.metavars)
        for more in (parameter.kind, parameter.default and f"Default: {parameter.default}"):
            text += f" {prose(_sentence(more))}" if more else ""
        return item([parameter.tag], [text])


def _as_summary(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text.endswith((".", ":", "?")) else f"{text}."


_STATUS = re.compile(r"Status (\d+)\s+([^.]*)\.\s*")


def of_function(words: str, function: Callable[..., Any]) -> Command:
    """Return a command of Typer's."""
    text = inspect.cleandoc(function.__doc__ or "")
    statuses = {
        int(number): " ".join(said.split()).removeprefix("if ")
        for number, said in _STATUS.findall(text)
    }
    paragraphs = [" ".join(p.split()) for p in _STATUS.sub("", text).split("\n\n")]
    parameters = [
        _parameter(name, found.annotation, found.default)
        for name, found in get_params_from_function(function).items()
    ]
    said = tuple(filter(None, paragraphs))
    return Command(words, said[0], said, tuple(parameters), statuses)


def _parameter(name: str, kind: Any, declared: OptionInfo | ArgumentInfo) -> Parameter:
    plain, is_many = _plain(kind)
    if isinstance(declared, ArgumentInfo):
        return Parameter((), declared.metavar or name.upper(), declared.help or "")
    option = "--" + name.replace("_", "-")
    names = tuple(declared.param_decls or [option])
    if plain is bool and not declared.param_decls:
        names = (option, f"--no-{option[2:]}")
    return Parameter(
        names,
        "" if plain is bool else declared.metavar or _metavar(plain, name),
        (declared.help or "").removesuffix(" (default: the shipped one).")
        + ("" if not is_many or "repeat" in (declared.help or "") else "; repeatable"),
        _kind(plain, declared.min, declared.max),
        _default(declared, names),
    )


def _plain(kind: Any) -> tuple[Any, bool]:
    """Return a type without `None` and `list`, and whether there may be several."""
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    if typing.get_origin(kind) is list:
        return typing.get_args(kind)[0], True
    return kind, False


def _metavar(kind: Any, name: str) -> str:
    last = name.rpartition("_")[2].upper()
    number = last if last in ("SECONDS", "S", "HOURS") else "NUMBER"
    return {Path: "PATH", float: number, int: "N"}.get(kind, last)


def _kind(kind: Any, least: float | None, most: float | None) -> str:
    if kind not in (int, float):
        return ""
    word = "A whole number" if kind is int else "A number"
    limits = [f"{least:g} or more"] if least is not None else []
    limits += [f"{most:g} or less"] if most is not None else []
    return ", ".join([word, *limits])


def _default(declared: OptionInfo, names: Sequence[str]) -> str:
    value = declared.default
    if isinstance(declared.show_default, str):
        return declared.show_default
    if "(default: the shipped one)" in (declared.help or ""):
        return "the shipped one"
    if isinstance(value, bool):
        return names[0 if value else 1] if len(names) == 2 else ""
    return "" if value is None or value == "" else f"{value:g}" if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def of_parser(parser: argparse.ArgumentParser) -> Command:
    """Return a command of argparse's."""
    parameters = []
    for action in parser._actions:
        metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        said = "Print the version" if action.dest == "version" else (action.help or "")
        if action.dest == "help":
            said = "Print a summary of the options"
        said = _capital(said)
        choices = f"One of {', '.join(action.choices)}" if action.choices else ""
        default = str(action.default) if action.choices else ""
        kind = "A number" if action.type is float else choices
        parameters.append(Parameter(tuple(action.option_strings), metavar, said, kind, default))
    title = parser.description or ""
    return Command(parser.prog, title, (title,), tuple(parameters), {})


_OPTION = re.compile(r"^  (-\S.*?)(?:  +(.*))?$")


def of_usage(words: str, usage: str, title: str) -> Command:
    """Return a command that tells its options in a text: two spaces, names, two spaces, words."""
    parameters: list[Parameter] = []
    paragraphs: list[str] = []
    for block in usage.split("\n\n")[1:]:
        if not block.startswith("  -"):
            paragraphs.append(" ".join(block.split()))
            continue
        for line in block.splitlines():
            match = _OPTION.match(line)
            if match:
                *names, last = match[1].split(", ")
                name, _, metavar = last.partition(" ")
                parameters.append(Parameter((*names, name), metavar, match[2] or ""))
            else:
                parameters[-1] = _longer(parameters[-1], line)
    shown = tuple(_capitalized(parameter) for parameter in parameters)
    return Command(words, title, tuple(paragraphs), shown, {})


def _longer(parameter: Parameter, line: str) -> Parameter:
    return Parameter(parameter.names, parameter.metavar, f"{parameter.help} {line.strip()}")


def _capitalized(parameter: Parameter) -> Parameter:
    return Parameter(parameter.names, parameter.metavar, _capital(parameter.help.strip()))


# The keys of the configuration.


@dataclass(frozen=True, slots=True)
class Key:
    """Keys of hadar.yaml that one comment explains."""

    names: tuple[str, ...]
    comment: str


def keys() -> tuple[str, list[Key]]:
    """Return the comment at the head of the shipped configuration, and its keys in order."""
    text = operators_file("hadar.yaml").read_text(encoding="utf-8")
    found: list[Key] = []
    section, comment, head = "", [], ""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            comment.append(bare.lstrip("# "))
        elif not bare:
            head, comment = head or " ".join(comment), []
        elif bare.endswith(":"):
            section = bare[:-1]
        else:
            section = section if line.startswith(" ") else ""
            name = ".".join(filter(None, [section, bare.partition(":")[0]]))
            if comment:
                found.append(Key((name,), " ".join(comment)))
            else:
                found[-1] = Key((*found[-1].names, name), found[-1].comment)
            comment = []
    return head, found


def _value_of(name: str) -> str:
    """Return in words what values a key takes, and its default."""
    section, _, key = name.rpartition(".")
    schema = (SolverConfig if section else Config).model_json_schema()["properties"][key]
    default = schema.get("default")
    kinds = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    words = _kind_of(kinds[0])
    words += " or null" if len(kinds) < len(schema.get("anyOf", kinds)) else ""
    shown = "null" if default is None else f"{default:g}" if _is_number(default) else str(default)
    return f"{words}; default: {'{}' if key == 'partitions' else shown}."


def _kind_of(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "One of " + ", ".join(schema["enum"])
    if schema["type"] == "object":
        return "Partitions, each with " + _kind_of(schema["additionalProperties"]).lower()
    word = {"number": "A number", "integer": "A whole number", "string": "A path"}[schema["type"]]
    limits = {
        "exclusiveMinimum": " above {:g}",
        "minimum": ", {:g} or more",
        "exclusiveMaximum": ", below {:g}",
    }
    said = [form.format(schema[name]) for name, form in limits.items() if name in schema]
    return "".join([word, *said])


# Pages.


@dataclass(frozen=True, slots=True)
class Page:
    """A manual page: its name, its section, what it is in a line, and its sections."""

    name: str
    section: int
    summary: str
    parts: Sequence[tuple[str, Sequence[str]]]

    @property
    def path(self) -> str:
        """Return where it lies, from the directory of the pages."""
        return f"man{self.section}/{self.name}.{self.section}"

    def text(self) -> str:
        """Return its source."""
        # No date: that of the release is in the changelog, and one of the day would differ daily.
        head = f'.TH {exact(self.name.upper())} {self.section} "" "hadar_slurm {__version__}" '
        lines = [
            r".\" Written by docs/man/generate.py; changes belong there, or into the command.",
            f'{head}"{_SECTIONS[self.section]}"',
            ".SH NAME",
            *filled(rf"{exact(self.name)} \- {marked(self.summary)}"),
        ]
        for heading, body in self.parts:
            lines += [f".SH {heading}", *body] if body else []
        return "\n".join(lines) + "\n"


Notes = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Return the source of every page by its path."""
    notes = tomllib.loads((HERE / "pages.toml").read_text(encoding="utf-8"))
    return {page.path: page.text() for page in _pages(notes)}


def _pages(notes: Mapping[str, Notes]) -> Iterator[Page]:
    yield _overview(notes["hadar"])
    for name, deferred in COMMANDS.items():
        found = deferred.load()
        known = notes[f"hadar-{name}"]
        if isinstance(found, typer.Typer):
            yield _group(name, found, deferred.summary, known)
        else:
            yield _single(f"hadar-{name}", 1, of_function(f"hadar {name}", found), known)
    submission = notes["hadar-sbatch"]
    command = of_usage("hadar-sbatch", USAGE, submission["summary"])
    synopsis = [*_synopsis_of_usage(USAGE)]
    yield _single("hadar-sbatch", 1, command, submission, synopsis=synopsis)
    yield _single("hadard", 8, of_parser(daemon_parser()), notes["hadard"])
    yield _configuration(notes["hadar.yaml"])


def _synopsis_of_usage(usage: str) -> Iterator[str]:
    word, *rest = usage.split("\n", 1)[0].removeprefix("usage: ").split(" ", 1)
    yield f".SY {exact(word)}"
    yield from map(prose, rest)
    yield ".YS"


def _overview(notes: Notes) -> Page:
    listed = [
        line
        for name, deferred in COMMANDS.items()
        for line in item([f"{bold(f'hadar-{name}')}(1)"], [marked(deferred.summary)])
    ]
    listed += item([bold("hadar version")], [marked(version.__doc__ or "")])
    options = [
        Parameter(("--install-completion",), "", "Install completion for the current shell."),
        Parameter(("--show-completion",), "", "Print what would be installed."),
        Parameter(("--version",), "", "Print the version and exit."),
        Parameter(("--help",), "", "List the commands; after a command, its options."),
    ]
    command = Command("hadar", SUMMARY, (), tuple(options), {})
    synopsis = [
        *(".SY hadar", italic("COMMAND"), rf"[{italic('ARGUMENT')}]...\&", ".YS"),
        *(".SY hadar", bold("--help"), ".YS"),
    ]
    described = _paragraphs(notes["description"])
    parts = [("SYNOPSIS", synopsis), ("DESCRIPTION", described), ("COMMANDS", listed)]
    parts += [("OPTIONS", command.options()), *_common([command], notes)]
    return Page("hadar", 1, _as_summary(SUMMARY), parts)


def _single(
    name: str, section: int, command: Command, notes: Notes, synopsis: Sequence[str] = ()
) -> Page:
    described = [*command.description()]
    for text in notes.get("description", []):
        described += [".PP", *filled(marked(text, command.metavars))]
    parts = [
        ("SYNOPSIS", synopsis or command.synopsis()),
        ("DESCRIPTION", described),
        ("OPTIONS", command.options()),
        *_common([command], notes),
    ]
    return Page(name, section, command.summary, parts)


def _group(name: str, group: typer.Typer, summary: str, notes: Notes) -> Page:
    found = []
    for registered in group.registered_commands:
        function = registered.callback
        assert function is not None
        word = registered.name or function.__name__.replace("_", "-")
        found.append(of_function(f"hadar {name} {word}", function))
    body: list[str] = []
    for command in found:
        body += [f".SS {exact(command.words)}", *command.description(), *command.options()]
    parts = [
        ("SYNOPSIS", [line for command in found for line in command.synopsis()]),
        ("DESCRIPTION", _paragraphs([summary, *notes.get("description", [])])),
        ("COMMANDS", body),
        *_common(found, notes),
    ]
    return Page(f"hadar-{name}", 1, _as_summary(summary), parts)


def _configuration(notes: Notes) -> Page:
    head, found = keys()
    body: list[str] = []
    for key in found:
        said = {name: prose(_value_of(name)) for name in key.names}
        if len(said) > 1:
            said = {name: f"{bold(name)}: {text}" for name, text in said.items()}
        body += item([bold(name) for name in said], [marked(key.comment), *said.values()])
    parts = [
        ("SYNOPSIS", [italic(str(DEFAULT_PATH))]),
        ("DESCRIPTION", _paragraphs([head, *notes["description"]])),
        ("KEYS", body),
        *_common([], notes),
    ]
    return Page("hadar.yaml", 5, notes["summary"], parts)


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in (".PP", *filled(marked(text)))][1:]


def _common(found: Sequence[Command], notes: Notes) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections that most pages have."""
    for heading, texts in notes.get("sections", {}).items():
        yield heading, _paragraphs(texts)
    yield "EXIT STATUS", _statuses(found, notes)
    yield "FILES", _rows(_files(found, notes))
    yield "ENVIRONMENT", _rows(_table_or_list(notes, "environment"))
    examples: list[str] = []
    for example in notes.get("examples", []):
        examples += [".PP", *filled(marked(example["text"])), ".PP", ".in +4n", ".EX"]
        examples += [exact(line) for line in example["run"].splitlines()] + [".EE", ".in"]
    yield "EXAMPLES", examples[1:]
    also = [f"{bold(name)}({number})" for name, number in map(_reference, notes["see_also"])]
    yield "SEE ALSO", [", ".join(also)]


def _reference(text: str) -> tuple[str, str]:
    name, _, number = text.rstrip(")").partition("(")
    return name, number


def _statuses(found: Sequence[Command], notes: Notes) -> list[str]:
    if not found:
        return []
    if "exit_status" in notes:
        return _rows(_table_or_list(notes, "exit_status"))
    said = [(command.words, n, text) for command in found for n, text in command.statuses.items()]
    if len(found) > 1:
        said = [(words, n, f"{text} (`{words}`)") for words, n, text in said]
    rows = [("0", "What was asked for is done.")]
    ones = [text for _, n, text in said if n == 1]
    failed = "one line on standard error says what and why."
    rows.append(("1", f"{'; '.join([*ones, 'or it failed' if ones else 'It failed'])}: {failed}"))
    rows += [("2", "Wrong usage, or a file that it reads is wrong: told in the same way.")]
    rows += [(str(n), _capital(text)) for _, n, text in said if n > 2]
    return _rows(rows)


# What begins no sentence with a capital letter: it would be another program.
_PROGRAMS = re.compile(r"(hadar|hadard|sbatch)\b")


def _capital(text: str) -> str:
    return text if _PROGRAMS.match(text) else text[:1].upper() + text[1:]


_PATHS = ("disable_file", "run_dir", "spool_dir", "state_dir", "journal")


def _files(found: Sequence[Command], notes: Notes) -> list[tuple[str, str]]:
    names = {name for command in found for p in command.parameters for name in p.names}
    rows = []
    takes_file = any(p.metavar == "[FILE]" for command in found for p in command.parameters)
    if "--config" in names or takes_file:
        rows.append((f"`{DEFAULT_PATH}`", "The configuration of hadard: hadar.yaml(5)."))
    if "--journal" in names and "--config" in names:
        journal = Config().journal
        rows.append((f"`{journal}`", "The journal of hadard; its configuration may name another."))
    if notes.get("has_files_of_keys"):
        said = {name: key.comment for key in keys()[1] for name in key.names}
        rows += [(f"`{getattr(Config(), name)}`", f"{said[name]} Key `{name}`.") for name in _PATHS]
    return [*rows, *_table_or_list(notes, "files")]


def _table_or_list(notes: Notes, name: str) -> list[tuple[str, str]]:
    """Return what the notes have under a name: pairs, or FILE#HEADING, a table of docs/."""
    given = notes.get(name, [])
    if isinstance(given, str):
        file, _, heading = given.partition("#")
        return table((DOCS / file).read_text(encoding="utf-8"), heading)
    return [(first, second) for first, second in given]


def table(page: str, heading: str) -> list[tuple[str, str]]:
    """Return the rows of the first table of two columns under a heading."""
    (part,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    rows = re.findall(r"^\|(.*)\|$", part, re.MULTILINE)[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]
    return [(first, second) for first, second in cells]


def _rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        line
        for first, second in rows
        for line in item([marked(first)], [marked(_capital(_sentence(second)))])
    ]


def main() -> int:
    """Write every page, and remove those of commands that are no more."""
    written = pages()
    for path, text in written.items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_text(text, encoding="utf-8")
    for page in HERE.glob("man?/*"):
        if str(page.relative_to(HERE)) not in written:
            page.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
