"""Write the manual pages: what the commands say of themselves, and pages.toml for the rest.

    python docs/man/generate.py     # or: make man

Pages are put together as Markdown, and Pandoc makes roff of it (docs/adr/0023-manual-pages.md).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pypandoc
import typer
from typer.core import TyperGroup

from hadar_slurm import __version__
from hadar_slurm.cli.main import COMMANDS, commands, load_command
from hadar_slurm.config import DEFAULT_PATH, Config
from hadar_slurm.daemon.options import option_parser as daemon_parser
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.resources import beside
from hadar_slurm.submit.own_options import USAGE

HERE = Path(__file__).resolve().parent
_SECTIONS = {1: "User commands", 5: "File formats", 8: "Administration"}
# With more options than this the synopsis does not name each.
_MOST_IN_SYNOPSIS = 8
_NOTE = r".\" Written by docs/man/generate.py; changes belong there, or into the command."
_STATUS = re.compile(r"Status (\d+)\s+(?:if )?([^.]*)\.\s*")
_PATHS = ("disable_file", "run_dir", "spool_dir", "state_dir", "journal")

Notes = Mapping[str, Any]
Rows = Iterable[tuple[str, str]]


def pages() -> dict[str, str]:
    """Return the source of every page by its path."""
    notes = tomllib.loads((HERE / "pages.toml").read_text(encoding="utf-8"))
    written = {f"man1/hadar-{name}.1": _command(name, notes[f"hadar-{name}"]) for name in COMMANDS}
    written["man1/hadar.1"] = _overview(notes["hadar"])
    written["man1/hadar-sbatch.1"] = _submission(notes["hadar-sbatch"])
    written["man5/hadar.yaml.5"] = _configuration(notes["hadar.yaml"])
    written["man8/hadard.8"] = _daemon(notes["hadard"])
    return {path: _roff(path, *page) for path, page in written.items()}


def _roff(path: str, summary: str, parts: Mapping[str, str]) -> str:
    name, section = path.partition("/")[2].rsplit(".", 1)
    said = summary if re.match(r"hadard?\b", summary) else summary[:1].lower() + summary[1:]
    shown = {"NAME": f"{name} - {said.rstrip('.')}", **parts}
    text = "\n\n".join(f"# {heading}\n\n{body}" for heading, body in shown.items() if body)
    # No date: that of the release is in the changelog, and one of the day would differ daily.
    metadata = {
        "title": name.upper(), "section": section, "footer": f"hadar_slurm {__version__}",
        "header": _SECTIONS[int(section)],
    }  # fmt: skip
    # No line ends where roff would see the end of a sentence.
    text = re.sub(r"(e\.g\.|\.\.\.\]?) (?=\S)", "\\1\u00a0", text)
    source = pypandoc.convert_text(
        re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", text),
        "man",
        "commonmark+definition_lists",
        ["--standalone", "--columns=80", *(f"--variable={k}={v}" for k, v in metadata.items())],
        filters=[str(HERE / "roff.lua")],
    )
    return "\n".join([_NOTE, *source.splitlines()[2:]]) + "\n"


def _command(name: str, notes: Notes) -> tuple[str, dict[str, str]]:
    loaded = load_command(name)
    is_group = isinstance(loaded, TyperGroup)
    parts = loaded.commands if isinstance(loaded, TyperGroup) else {"": loaded}
    found = {f"hadar {name} {word}".strip(): part for word, part in parts.items()}
    said = {words: _STATUS.sub("", part.help or "") for words, part in found.items()}
    options = {words: _definitions(_parameters(part)) for words, part in found.items()}
    ((first, described),) = list(said.items())[:1]
    shown = COMMANDS[name] if is_group else described
    statuses = [
        (number, f"{text} (`{words}`)" if is_group else text)
        for words, part in found.items()
        for number, text in _STATUS.findall(part.help or "")
    ]
    ones = [text for number, text in statuses if number == "1"]
    failed = "; ".join([*ones, "or it failed" if ones else "It failed"])
    names = {n for part in found.values() for p in part.params for n in (*p.opts, p.metavar)}
    files = []
    if names & {"--config", "[FILE]"}:
        files.append((f"`{DEFAULT_PATH}`", "The configuration of hadard: hadar.yaml(5)."))
    if names >= {"--journal", "--config"}:
        journal = f"`{Config().journal}`"
        files.append((journal, "The journal of hadard; its configuration may name another."))
    bodies = [f"## {words}\n\n{said[words]}\n\n{options[words]}" for words in found]
    return COMMANDS[name], {
        "SYNOPSIS": "\n\n".join(_synopsis(w, _parameters(part)) for w, part in found.items()),
        "DESCRIPTION": "\n\n".join([shown, *notes.get("description", [])]),
        **({"COMMANDS": "\n\n".join(bodies)} if is_group else {"OPTIONS": options[first]}),
        **_common(notes, files, [
            ("0", "What was asked for is done."),
            ("1", f"{failed}: one line on standard error says what and why."),
            ("2", "Wrong usage, or a file that it reads is wrong: told in the same way."),
            *(row for row in statuses if int(row[0]) > 2),
        ]),
    }  # fmt: skip


def _synopsis(words: str, rows: Rows) -> str:
    tags = [tag for tag, _ in rows]
    options = [tag.replace(", ", "|") for tag in tags if tag.startswith("`")]
    options = ["*OPTION*"] if len(options) > _MOST_IN_SYNOPSIS else options
    shown = [f"[{option}]".replace(" ", "\u00a0") for option in options]
    shown = [f"{shown[0]}..."] if options == ["*OPTION*"] else shown
    return " ".join([f"**{words}**", *shown, *(tag for tag in tags if not tag.startswith("`"))])


def _parameters(command: Any) -> Iterator[tuple[str, str]]:
    """Yield arguments, then options, each with its help: default and bounds as Typer says them."""
    context = typer.Context(command)
    for parameter in sorted(command.params, key=lambda p: bool(p.param_type_name == "option")):
        usage, said = parameter.get_help_record(context)
        word = parameter.metavar or usage.split()[-1]
        if word.startswith("<"):
            last = parameter.name.rpartition("_")[2].upper()
            word = {"<path>": "PATH", "<int>": "N"}.get(word, last)
        names = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
        tag = re.sub(r"[\w|]+", r"*\g<0>*", word)
        if parameter.param_type_name == "option":
            tag = ", ".join(names) + ("" if word.startswith("-") else f" *{word}*")
        said = re.sub(r"default: \((.*)\)\]", r"default: \1]", said)
        yield tag, re.sub(r"\s*\[required\]|; required(?=\])", "", said)


def _definitions(rows: Rows) -> str:
    return "\n\n".join(f"{tag.strip('[]')}\n\n:   {_sentence(text)}" for tag, text in rows)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    text = text if re.match(r"(hadard?|sbatch)\b", text) else text[:1].upper() + text[1:]
    return text if text.endswith((".", ":", "?", "]")) else f"{text}."


def _overview(notes: Notes) -> tuple[str, dict[str, str]]:
    root = typer.main.get_command(commands)
    listed = [(f"hadar-{name}(1)", summary) for name, summary in COMMANDS.items()]
    return root.help or "", {
        "SYNOPSIS": "**hadar** *COMMAND* [*ARGUMENT*]...\n\n**hadar** `--help`",
        "DESCRIPTION": "\n\n".join(notes["description"]),
        "COMMANDS": _definitions([*listed, ("`hadar version`", "Print the version.")]),
        "OPTIONS": _definitions(_parameters(root)),
        **_common(notes),
    }


def _submission(notes: Notes) -> tuple[str, dict[str, str]]:
    head, *blocks = USAGE.split("\n\n")
    found = re.findall(r"^  (-.*?)  +(.*(?:\n {6,}.*)*)", USAGE, re.MULTILINE)
    rows = [(re.sub(r"(--?[\w-]+)", r"`\1`", tag), text) for tag, text in found]
    said = [block for block in blocks if not block.startswith("  -")]
    return notes["summary"], {
        "SYNOPSIS": head.removeprefix("usage: ").replace("hadar-sbatch", "**hadar-sbatch**", 1),
        "DESCRIPTION": "\n\n".join([*said, *notes["description"]]),
        "OPTIONS": _definitions(rows),
        **_common(notes),
    }


def _daemon(notes: Notes) -> tuple[str, dict[str, str]]:
    parser = daemon_parser()
    rows = []
    for action in parser._actions:
        tag = ", ".join(f"`{name}`" for name in action.option_strings)
        tag += f" *{action.metavar}*" if action.metavar else ""
        rows.append((tag, parser._get_formatter()._expand_help(action)))
    said = {name: text for names, text in _keys()[1] for name in names}
    files = [(f"`{getattr(Config(), name)}`", f"{said[name]} Key `{name}`.") for name in _PATHS]
    return str(parser.description), {
        "SYNOPSIS": _synopsis("hadard", rows),
        "DESCRIPTION": "\n\n".join([str(parser.description), *notes["description"]]),
        "OPTIONS": _definitions(rows),
        **_common(notes, [(f"`{DEFAULT_PATH}`", "The configuration: hadar.yaml(5)."), *files]),
    }  # fmt: skip


def _configuration(notes: Notes) -> tuple[str, dict[str, str]]:
    head, found = _keys()
    tags = [", ".join(f"`{name}`" for name in names) for names, _ in found]
    said = [
        f"{text} Default: {', '.join(f'`{value}`' for value in names.values())}."
        for names, text in found
    ]
    said[tags.index("`policy`")] += f" One of: {', '.join(POLICY_NAMES)}."
    return notes["summary"], {
        "SYNOPSIS": f"*{DEFAULT_PATH}*",
        "DESCRIPTION": "\n\n".join([head, *notes["description"]]),
        "KEYS": _definitions(zip(tags, said, strict=True)),
        **_common(notes),
    }


def _keys() -> tuple[str, list[tuple[dict[str, str], str]]]:
    """Return the head of the shipped configuration; and keys, by default, that share a comment."""
    found: list[tuple[dict[str, str], str]] = []
    section, comment, head = "", "", ""
    for line in beside("slurm_conf", "hadar.yaml").read_text(encoding="utf-8").splitlines():
        key, _, value = line.strip().partition(":")
        if line.strip().startswith("#"):
            comment += line.strip("# ") + " "
        elif not line.strip():
            head, comment = head or comment, ""
        elif not value:
            section = f"{key}."
        else:
            section = section if line.startswith(" ") else ""
            if comment:
                found.append(({}, comment.strip()))
            found[-1][0][section + key] = value.strip()
            comment = ""
    return head, found


def _common(notes: Notes, files: Rows = (), statuses: Rows = ()) -> dict[str, str]:
    """Return the sections that most pages have."""
    examples = [
        f"{example['text']}\n\n" + "\n".join(f"    {line}" for line in example["run"].splitlines())
        for example in notes.get("examples", [])
    ]
    return {
        **{head: "\n\n".join(texts) for head, texts in notes.get("sections", {}).items()},
        "EXIT STATUS": _definitions(_rows(notes, "exit_status") or statuses),
        "FILES": _definitions([*files, *_rows(notes, "files")]),
        "ENVIRONMENT": _definitions(_rows(notes, "environment")),
        "EXAMPLES": "\n\n".join(examples),
        "SEE ALSO": ", ".join(notes["see_also"]),
    }


def _rows(notes: Notes, name: str) -> list[tuple[str, str]]:
    """Return what the notes have under a name: pairs, or FILE#HEADING, a table of docs/."""
    given = notes.get(name, [])
    if not isinstance(given, str):
        return [(first, second) for first, second in given]
    file, _, heading = given.partition("#")
    page = (HERE.parent / file).read_text(encoding="utf-8")
    (part,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    cells = [re.split(r"(?<!\\)\|", row) for row in re.findall(r"^\|(.*)\|$", part, re.M)[2:]]
    return [(a.strip().replace("\\|", "|"), b.strip().replace("\\|", "|")) for a, b in cells]


def main() -> None:
    """Write every page, and remove those of commands that are no more."""
    written = pages()
    for page in HERE.glob("man?/*"):
        page.unlink()
    for path, text in written.items():
        (HERE / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
