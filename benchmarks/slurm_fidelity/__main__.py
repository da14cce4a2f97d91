"""The commands; see the package."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from slurm_fidelity.drawn import DATA

RESULTS = Path(__file__).resolve().parents[1] / "results" / "slurm_fidelity"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm-fidelity.md"
LISTS, PLAYS = RESULTS / "lists.json.gz", RESULTS / "plays.json.gz"
STEERED, JUDGED = RESULTS / "steered.json.gz", RESULTS / "judged.json"
GAINS, HISTORIES = RESULTS / "gains.json", RESULTS / "histories.json"


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=sys.modules["slurm_fidelity"].__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw the lists")
    drawing.add_argument("--data", type=Path, default=DATA, help="where the traces are")
    real = commands.add_parser("real", help="play lists on a local Slurm")
    real.add_argument("names", nargs="+", metavar="NAME")
    real.add_argument("--to", type=Path, required=True, help="a directory for the recordings")
    real.add_argument("--slurm", metavar="VERSION", help="in the image that docker/up has made")
    real.add_argument("--steered", action="store_true", help="under hadard in mode steer")
    gather = commands.add_parser("gather", help="put recordings into the file of results")
    gather.add_argument("directory", type=Path)
    gather.add_argument("--steered", action="store_true", help="they are plays under hadard")
    judging = commands.add_parser("judge", help="simulate what was played, and write the page")
    judging.add_argument("names", nargs="*", metavar="NAME", help="others stay as recorded")
    gaining = commands.add_parser("gains", help="simulate what was played steered; write it")
    gaining.add_argument("--recorded", action="store_true", help="as recorded; judge again")
    commands.add_parser("histories", help="compare plays as histories; write their section")
    given = parser.parse_args()
    # So that a play is cleaned up after SIGTERM as after Control-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = {
        "draw": draw, "real": play_real, "gather": put_together, "judge": judge_all,
        "gains": judge_gains, "histories": judge_histories,
    }  # fmt: skip
    command[given.command](given)


def draw(given: argparse.Namespace) -> None:
    """Draw the lists, and say which could not be drawn."""
    from slurm_fidelity.jobs import write_lists
    from slurm_fidelity.lists import draw_lists

    lists, missing = draw_lists(given.data)
    RESULTS.mkdir(exist_ok=True)
    write_lists(lists, LISTS)
    print(*(f"left out: {text}" for text in missing), sep="\n")
    for each in lists.values():
        print(f"{each.name}: {len(each.jobs)} jobs, the last after {each.jobs[-1].submit_s:.0f} s")


def play_real(given: argparse.Namespace) -> None:
    """Play lists one after another, and record each as soon as it is over."""
    if given.slurm:
        from slurm_fidelity.contained import play_in_container

        play_in_container(given.slurm, given.names, given.to)
        return
    from slurm_fidelity.jobs import read_lists, write_plays
    from slurm_fidelity.real import PlayError, play
    from slurm_fidelity.steered import play_steered

    lists = read_lists(LISTS)
    given.to.mkdir(parents=True, exist_ok=True)
    for name in given.names:

        def say(text: str, name: str = name) -> None:
            print(f"{time.strftime('%H:%M:%S')} {name}: {text}", flush=True)

        try:
            if given.steered:
                played = play_steered(lists[name], say=say, logs=given.to)
            else:
                played = play(lists[name], say=say)
        except PlayError as error:
            say(str(error))
            continue
        write_plays([played], given.to / f"{name}-{time.time():.0f}.json.gz")
        say(f"over; submitted at most {played.late_s} s late")


def put_together(given: argparse.Namespace) -> None:
    """Put the recordings of a directory into the file of results."""
    from slurm_fidelity.jobs import read_plays, write_plays

    kept = STEERED if given.steered else PLAYS
    plays = read_plays(kept)
    known = {(each.list, each.made, each.slurm) for each in plays}
    for path in sorted(given.directory.glob("*.json.gz")):
        plays += [p for p in read_plays(path) if (p.list, p.made, p.slurm) not in known]
    write_plays(sorted(plays, key=lambda p: (p.list, p.slurm, p.made)), kept)
    print(f"{len(plays)} plays")


def judge_all(given: argparse.Namespace) -> None:
    """Simulate the lists that were played, or those named, and write the page and the record."""
    from slurm_fidelity.jobs import read_lists, read_plays
    from slurm_fidelity.judging import judge
    from slurm_fidelity.page import page, record, recorded

    lists, played = read_lists(LISTS), read_plays(PLAYS)
    named = [play for play in played if not given.names or play.list in given.names]
    judged = judge(lists, named)
    if given.names:
        others = {name: jobs for name, jobs in lists.items() if name not in given.names}
        judged += recorded(json.loads(JUDGED.read_text(encoding="utf-8")), others, played)
    made = sorted(play.made[:10] for play in played)
    days = " to ".join(dict.fromkeys([made[0], made[-1]]))
    about = f"Played on {days} on two cores, beside other work"
    tree = record(judged, about)
    JUDGED.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    _write_page(page(judged, about))
    for name, part in tree["means"].items():
        print(name, {key: round(value, 3) for key, value in part.items()})


def judge_gains(given: argparse.Namespace) -> None:
    """Simulate what was played under hadard, and write the section and the record."""
    from slurm_fidelity.gains import gains, record, with_plain
    from slurm_fidelity.jobs import read_lists, read_plays

    lists, steered = read_lists(LISTS), read_plays(STEERED)
    judged = json.loads(JUDGED.read_text(encoding="utf-8"))["lists"]
    plain = {
        (each["list"], each["slurm"]): [figures["mean_jct_s"] for figures in each["simulated"]]
        for each in judged
    }
    if given.recorded:
        slurm = {play.list: play.slurm for play in steered}
        plain_s = {
            name: [value / lists[name].compression for value in plain[name, slurm[name]]]
            for name in slurm
        }
        tree = with_plain(json.loads(GAINS.read_text(encoding="utf-8")), plain_s)
    else:
        tree = record(gains(lists, read_plays(PLAYS), steered, plain))
    GAINS.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    _write_page(PAGE.read_text(encoding="utf-8"))
    print(f"off by {tree['mean_off']:.1f} points in the mean of {len(tree['lists'])} lists")


def judge_histories(given: argparse.Namespace) -> None:
    """Compare the first play of each list as a history, and write the section and the record."""
    from slurm_fidelity.histories import judged, record
    from slurm_fidelity.jobs import read_lists, read_plays

    lists, first = read_lists(LISTS), {play.list: play for play in reversed(read_plays(PLAYS))}
    with tempfile.TemporaryDirectory(prefix="hadar-fid-") as scratch:
        found = [judged(lists[name], first[name], Path(scratch)) for name in sorted(first)]
    tree = record(found)
    HISTORIES.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    _write_page(PAGE.read_text(encoding="utf-8"))
    print(*(f"{each['list']}: {each['usual']['off']:+.1%}" for each in tree), sep="\n")


def _write_page(text: str) -> None:
    """Write the page, with the sections of the records that there are."""
    from slurm_fidelity import sections
    from slurm_fidelity.histories import USUAL

    if GAINS.exists():
        tree = json.loads(GAINS.read_text(encoding="utf-8"))
        text = sections.with_section(text, sections.GAINS, sections.gains_section(tree))
    if HISTORIES.exists():
        tree = json.loads(HISTORIES.read_text(encoding="utf-8"))
        part = sections.histories_section(tree, USUAL)
        text = sections.with_section(text, sections.HISTORIES, part)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
