"""`typing: list`: hadar-sbatch gives a gang that plain Slurm places one GPU type."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.login_node import SBATCH, Site, call_of

from hadar_slurm.config import DEFAULT_PATH
from hadar_slurm.submit.call import _DEFAULT_CONFIG, call_for
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.describing.preview import as_text
from hadar_slurm.submit.request import parse_words, with_script

# Each line is `node|GPUs|partition|limits|features`, as of the sinfo that hadar-sbatch calls.
PLAIN = """\
v1|gpu:v100:4|main*|n/a|infinite|v100
v2|gpu:v100:4|main*|n/a|infinite|v100,ib
k1|gpu:k80:4|main*|n/a|infinite|k80
k2|gpu:k80:4|main*|n/a|infinite|k80
p1|gpu:p100:4|main*|n/a|infinite|p100
p2|gpu:p100:4|main*|n/a|infinite|p100
"""
LIST = "--constraint=[v100|p100|k80]"
GANG = ("-N2", "--gres=gpu:4", "-t60", "job.sh")
AVOIDED = "gives it one GPU type, --no-hadar or a constraint of yours prevents that"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Give a login node of a site that says `typing: list`."""
    site = Site(tmp_path)
    site.command("sbatch", SBATCH)
    # Of -t it prints the nodes that are drained.
    text = '[ "$3" != -t ] || { for node in $CLOSED; do echo "$node|"; done; exit; }\n'
    shell(site, "sinfo", text + 'while read -r line; do echo "$line"; done < "$0.txt"')
    (tmp_path / "bin" / "sinfo.txt").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "job.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "hadar.yaml").write_text("mode: hold\ntyping: list  # day one\n", encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return site


def shell(site: Site, name: str, text: str) -> None:
    """Put a shell script on PATH."""
    path = site.root / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def call(site: Site, *words: str, config: str = "hadar.yaml", is_parsable: bool = False) -> Call:
    """Return the call for a command line."""
    request = with_script(parse_words(words, {}), lambda *_: "#!/bin/sh\n")
    variables = {"HADAR_RUN_DIR": str(site.root), "HADAR_CONFIG": str(site.root / config)}
    return call_for(request, variables, is_parsable=is_parsable)


def run(site: Site, *words: str, nodes: str = PLAIN, config: str = "hadar.yaml") -> list[str]:
    """Return what sbatch gets."""
    (site.root / "bin" / "sinfo.txt").write_text(nodes, encoding="utf-8")
    return list(call(site, *words, config=config).argv[1:])


def test_a_gang_gets_one_type_while_hadard_is_away(site: Site) -> None:
    """The fastest first; the line says so, and how to avoid it, and the dry run has it too."""
    found = call(site, *GANG)
    assert found.argv == ("sbatch", LIST, *GANG)
    assert found.decision.line == (
        "plain Slurm places this job: hadard is not alive here "
        f"(no fresh heartbeat in {site.root}); {LIST} {AVOIDED}"
    )
    assert as_text(found) == f"sbatch '{LIST}' {' '.join(GANG)}"
    parsable = call(site, *GANG, is_parsable=True)
    assert parsable.argv == ("sbatch", "--parsable", LIST, *GANG)
    assert parsable.otherwise is not None
    assert parsable.otherwise.argv == ("sbatch", "--parsable", *GANG)


@pytest.mark.parametrize(
    "words",
    [
        ("-N2", "--gpus-per-node=4"),
        ("-N2", "-G8"),
        ("-N1-2", "-G6"),
        ("-G6",),
        ("-n8", "--gpus-per-task=1"),
        ("-N2", "--ntasks-per-node=4", "--gpus-per-task=1", "--time=9"),
        ("-N2", "--gres=gpu:4", "--exclude=k1"),
        ("-N2", "--gres=gpu:4", "--hold"),
    ],
    ids=" ".join,
)
def test_every_form_of_an_untyped_gang_gets_it(site: Site, words: tuple[str, ...]) -> None:
    types = LIST if "--exclude=k1" not in words else "--constraint=[v100|p100]"
    assert run(site, *words, "job.sh") == [types, *words, "job.sh"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("-G1",),
        ("-N1", "--gres=gpu:4"),
        ("-N2", "--gres=gpu:v100:4"),
        ("-G", "k80:8"),
        ("-N2", "--gres=gpu:4", "-Cib"),
        ("-N2", "--gres=gpu:4", "--prefer=k80"),
        ("-N2", "--gres=gpu:4", "-wv1,k1"),
        ("-N2", "--gres=gpu:4", "-M", "other"),
        ("-N2", "--gres=gpu:4", "--no-hadar"),
        ("-N2", "--gres=gpu:4", ":", "-N1"),
        ("-N2", "--gres=gpu:2,license:1"),
        ("-N5", "--gres=gpu:4"),  # no type has that number
        ("-N2", "--gres=gpu:8"),
        ("-G9",),
        ("-G4", "--hadar-copies=2", "--hadar-steps=9"),
    ],
    ids=" ".join,
)
def test_nothing_is_added_to_other_jobs(site: Site, words: tuple[str, ...]) -> None:
    """What its owner has chosen stays, and a job that only several types can hold may mix them."""
    argv = run(site, *words, "-t60", "job.sh")
    assert not any(LIST[:13] in word for word in argv)


@pytest.mark.parametrize(
    ("text", "is_list"),
    [
        ("typing: list", True),
        ("# x\ntyping:  'list' # y\nmode: hold\n", True),
        ("typing: any\n", False),
        ("# typing: list\n", False),
        ("enrol:\n  typing: list\n", False),
        ("typing: listed\n", False),
        ("", False),
    ],
)
def test_only_a_site_that_says_so_gets_it(site: Site, text: str, is_list: bool) -> None:
    (site.root / "hadar.yaml").write_text(text, encoding="utf-8")
    assert (LIST in run(site, *GANG)) == is_list


def test_without_a_configuration_nothing_is_added(site: Site) -> None:
    """That of hadard is read, or the one in HADAR_CONFIG, if it can be."""
    assert str(DEFAULT_PATH) == _DEFAULT_CONFIG
    for name in ("bin", "nowhere"):
        assert run(site, *GANG, config=name) == [*GANG]


def test_nothing_is_added_where_hadard_decides(site: Site) -> None:
    """Held, or steered, or as soon as hadard is back; a partition that it only advises gets it."""
    site.beat()
    assert not any("constraint" in word for word in run(site, *GANG))
    site.beat(steered=("",))
    assert not any("constraint" in word for word in run(site, *GANG))
    site.beat(partitions=("other",))
    assert run(site, *GANG) == [LIST, *GANG]
    own = ("--hadar-model=A3C", "--hadar-steps=9", *GANG)
    assert LIST in run(site, *own)
    site.beat(good_for_s=-1.0)
    assert LIST not in run(site, *own)
    site.beat(good_for_s=-1.0, enrols=True)
    assert run(site, *GANG) == [*GANG]


def test_the_users_own_speeds_order_the_types(site: Site) -> None:
    """Types on which it does not run are left out, types that are far slower are not."""
    site.beat(partitions=("other",))
    own = ("--hadar-throughput=k80=10,v100=2,p100=0", "--hadar-steps=9", *GANG)
    assert "--constraint=[k80|v100]" in run(site, *own)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (PLAIN.replace("v100,ib", "ib"), "the features of v2 do not name its GPU type (v100)"),
        (PLAIN.replace("v100,ib", "v100,k80"), "the features of v2 do not name its GPU type"),
        (
            PLAIN.replace("v2|gpu:v100:4", "v2|gpu:v100:2,gpu:k80:2"),
            "v2 has GPUs of several types (k80, v100)",
        ),
        (PLAIN.replace("p100", "x1"), "nothing is known of the speed of x1"),
    ],
)
def test_where_the_list_cannot_be_made_the_line_says_why(site: Site, nodes: str, why: str) -> None:
    assert run(site, *GANG, nodes=nodes) == [*GANG]
    line = call(site, *GANG).decision.line
    assert f"; {why}" in line
    assert line.endswith(": its GPUs may be of several types")


def test_nodes_that_the_gang_cannot_have_do_not_matter(site: Site) -> None:
    nodes = f"{PLAIN}x1|gpu:v100:1,gpu:k80:1|main*|1|1|(null)\nx2|gpu:t4:8|other|1|1|t5\n"
    assert run(site, *GANG, nodes=nodes) == [LIST, *GANG]
    # One type is left, and others could be mixed with it.
    few = "".join(PLAIN.splitlines(keepends=True)[:3])
    assert run(site, *GANG, nodes=few) == ["--constraint=[v100]", *GANG]
    assert run(site, *GANG, nodes="".join(few.splitlines(keepends=True)[:2])) == [*GANG]


def test_no_gang_waits_for_a_drained_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of which nodes are up suffices, and all are listed: others may return before."""
    monkeypatch.setenv("CLOSED", "v1 p2")
    assert run(site, *GANG) == [LIST, *GANG]
    monkeypatch.setenv("CLOSED", "v1 p2 k1")
    assert run(site, *GANG) == [*GANG]


def test_a_job_that_slurm_would_refuse_with_it_is_submitted_without(site: Site) -> None:
    """So no job is refused for the list: its cores and memory may be on nodes of two types."""
    for status, argv, is_told in (("0", [LIST, *GANG], True), ("1", [*GANG], False)):
        config = str(site.root / "hadar.yaml")
        ended = site.run(*GANG, HADAR_CONFIG=config, STATUS_OF_TRIAL=status)
        assert call_of(ended)["argv"] == argv
        assert (AVOIDED in ended.stderr) == is_told


def test_a_slurm_that_does_not_answer_stops_no_submission(site: Site) -> None:
    shell(site, "sinfo", "exit 1")
    assert run(site, *GANG) == [*GANG]
