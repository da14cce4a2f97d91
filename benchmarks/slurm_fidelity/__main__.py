"""The commands; see the package."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from slurm_fidelity.drawn import DATA

RESULTS = Path(__file__).resolve().parents[1] / "results" / "slurm_fidelity"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm-fidelity.md"
LISTS, PLAYS = RESULTS / "lists.json.gz", RESULTS / "plays.json.gz"


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
    gather = commands.add_parser("gather", help="put recordings into the file of results")
    gather.add_argument("directory", type=Path)
    commands.add_parser("judge", help="simulate what was played, and write the page")
    given = parser.parse_args()
    # So that a play is cleaned up after SIGTERM as after Control-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = {"draw": draw, "real": play_real, "gather": put_together, "judge": judge_all}
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

    lists = read_lists(LISTS)
    given.to.mkdir(parents=True, exist_ok=True)
    for name in given.names:

        def say(text: str, name: str = name) -> None:
            print(f"{time.strftime('%H:%M:%S')} {name}: {text}", flush=True)

        try:
            played = play(lists[name], say=say)
        except PlayError as error:
            say(str(error))
            continue
        write_plays([played], given.to / f"{name}-{time.time():.0f}.json.gz")
        say(f"over; submitted at most {played.late_s} s late")


def put_together(given: argparse.Namespace) -> None:
    """Put the recordings of a directory into the file of results."""
    from slurm_fidelity.jobs import read_plays, write_plays

    plays = read_plays(PLAYS)
    known = {(each.list, each.made, each.slurm) for each in plays}
    for path in sorted(given.directory.glob("*.json.gz")):
        plays += [p for p in read_plays(path) if (p.list, p.made, p.slurm) not in known]
    write_plays(sorted(plays, key=lambda p: (p.list, p.slurm, p.made)), PLAYS)
    print(f"{len(plays)} plays")


def judge_all(given: argparse.Namespace) -> None:
    """Simulate all recorded lists, and write the page and the record."""
    from slurm_fidelity.jobs import read_lists, read_plays
    from slurm_fidelity.judging import judge
    from slurm_fidelity.page import page, record

    judged = judge(read_lists(LISTS), read_plays(PLAYS))
    plays = sorted(play.made for play in read_plays(PLAYS))
    about = f"Played on {plays[0][:10]} on two cores, beside other work"
    PAGE.write_text(page(judged, about), encoding="utf-8")
    tree = record(judged, about)
    (RESULTS / "judged.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    for name, part in tree["means"].items():
        print(name, {key: round(value, 3) for key, value in part.items()})


if __name__ == "__main__":
    main()
