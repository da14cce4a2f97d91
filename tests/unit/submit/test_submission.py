"""From a command line to the sbatch call: all words kept, every fault in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from builders import a_cluster, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.compose import check_exports, compose
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.describing.fitting import check_fits, in_one_copy
from hadar_slurm.submit.describing.summary import unknown_model
from hadar_slurm.submit.request import SbatchRequest, parse_words, with_script
from hadar_slurm.submit.script import read_directives

TABLE = ThroughputTable(
    "test",
    {
        name: some_rates(V100=10.0, K80=1.0)
        for name in ("ResNet-50 (batch size 64)", "ResNet-18 (batch size 64)", "A3C")
    },
)
ESTIMATOR = Estimator.shipped(TABLE)
OWN = ["--hadar-model=A3C", "--hadar-steps=100"]


def request_of(
    words: Sequence[str], script: str = "", environment: Mapping[str, str] | None = None
) -> SbatchRequest:
    """Return the parsed command line; only the file job.sh can be read."""
    request = parse_words(words, environment or {})
    return with_script(request, lambda path, _: script if path == "job.sh" else "")


def described(words: Sequence[str], script: str = "") -> Description:
    return describe(request_of(words, script), ESTIMATOR)


def argv_of(words: Sequence[str], script: str = "", *, is_held: bool = True) -> tuple[str, ...]:
    request = request_of(words, script)
    description = describe(request, ESTIMATOR)
    one = description if is_held else in_one_copy(description, description.gpus)
    return compose(request, one, is_held=is_held)


def carried(argv: Sequence[str]) -> Description:
    """Return the description in the one comment of an sbatch call."""
    (comment,) = [word.removeprefix("--comment=") for word in argv if "--comment" in word]
    found = decode(comment)
    assert found is not None
    return found


def fault_of(words: Sequence[str], script: str = "") -> str:
    with pytest.raises(JobSpecError) as caught:
        described(words, script)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The description


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["--gpus=2"], {}),
        (["--nodes=2", "--hadar-gang=2"], {}),
        (["--gpus=v100:2"], {"gpus": "v100:2"}),
        (["-N1-2", "--gpus=2"], {"gpus": "2", "nodes": "1-2"}),
        (["--gres=gpu:2"], {"gres": "gpu:2"}),
        (["--gpus-per-task=1", "--hadar-gang=2"], {"gpus-per-task": "1"}),
    ],
    ids=str,
)
def test_the_users_own_request_is_in_the_description(words: list[str], asks: object) -> None:
    """Unless the number of GPUs stands for it: hadard restores it even without its ledger."""
    assert described([*OWN, *words, "job.sh"]).asks == asks


def test_the_least_that_must_be_said() -> None:
    """A model and the steps describe a job of one GPU without checkpoints."""
    assert described([*OWN, "job.sh"]) == Description(workload="A3C", steps=100, gpus=1)


def test_everything_that_can_be_said() -> None:
    """Each option is in the description, in both of its forms."""
    expected = Description(
        workload="ResNet-50 (batch size 64)",
        steps=5000,
        gpus=4,
        shape=Shape(nodes=2, gpus_per_node=2),
        checkpoint=True,
        restart_cost_s=12.5,
        comment="mine",
    )
    pairs = {
        "model": "resnet-50",
        "batch-size": "64",
        "steps": "5000",
        "gang": "2x2",
        "checkpoint": "yes",
        "restart-cost": "12.5",
    }
    joined = [f"--hadar-{name}={value}" for name, value in pairs.items()]
    parted = [word for name, value in pairs.items() for word in (f"--hadar-{name}", value)]
    for own in (joined, parted):
        assert described([*own, "--comment=mine", "job.sh"]) == expected


def test_rates_may_be_given_instead_of_a_model() -> None:
    """GPU types are not case-sensitive; the model is empty."""
    found = described(["--hadar-throughput=V100=12.5, k80=1", "--hadar-steps=1"])
    assert found.throughputs == {"v100": 12.5, "k80": 1.0}
    assert found.workload == ""


@pytest.mark.parametrize(
    ("options", "gpus", "shape"),
    [
        ([], 1, None),
        (["--hadar-gang=4"], 4, None),
        (["--hadar-gang=2x3"], 6, Shape(nodes=3, gpus_per_node=2)),
        (["--hadar-gang=4", "--gpus=2"], 4, None),
        (["--gpus=4"], 4, None),
        (["-G4"], 4, None),
        (["-G", "v100:4"], 4, None),
        (["--gpus=v100:2,k80:1"], 3, None),
        (["--gpus=v100"], 1, None),
        (["--gpus-per-node=2"], 2, Shape(1, 2)),
        (["--gpus-per-node=v100:2", "--nodes=3"], 6, Shape(3, 2)),
        (["--gpus-per-node=2", "-N", "3"], 6, Shape(3, 2)),
        (["--gres=gpu:2"], 2, Shape(1, 2)),
        (["--gres=gpu"], 1, Shape(1, 1)),
        (["--gres=gpu:v100"], 1, Shape(1, 1)),
        (["--gres=gpu:v100:2", "-HN2"], 4, Shape(2, 2)),
        (["--gres=gpu:v100:2,gpu:k80:2"], 4, Shape(1, 4)),
        (["--gres=gpu:2,craynetwork:1"], 2, Shape(1, 2)),
        (["--gres=craynetwork:4"], 1, None),
        (["--tres-per-task=cpu:2"], 1, None),
        (["--gres=craynetwork:4", "--gpus=2"], 2, None),
        (["--gpus=2", "--gpus=8"], 8, None),
        (["--gpus-per-task=2", "--ntasks=2", "--hadar-gang=4"], 4, None),
    ],
)
def test_the_gang_is_what_sbatch_is_asked_for(
    options: list[str], gpus: int, shape: Shape | None
) -> None:
    """--hadar-gang decides, then sbatch's own options, the last of each; else a single GPU."""
    found = described([*OWN, *options, "job.sh"])
    assert (found.gpus, found.shape) == (gpus, shape)


def test_a_job_that_must_not_be_requeued_is_not_moved() -> None:
    """--no-requeue, on the command line or in the script, overrides --hadar-checkpoint."""
    own = [*OWN, "--hadar-checkpoint=yes"]
    assert described([*own, "job.sh"]).checkpoint
    assert not described([*own, "--no-requeue", "job.sh"]).checkpoint
    assert not described([*own, "job.sh"], "#!/bin/sh\n#SBATCH --no-requeue\n").checkpoint


@pytest.mark.parametrize(
    ("time", "loss_s"),
    [
        *(("20m", 1200.0), ("90s", 90.0), ("1H", 3600.0), ("1.5h", 5400.0), ("1d", 86400.0)),
        *(("20", 1200.0), ("0:05", 5.0), ("1:30:00", 5400.0)),
    ],
)
def test_a_job_may_be_requeued_when_it_loses_little(time: str, loss_s: float) -> None:
    """The time has a unit or is one of sbatch's; the job is submitted like one that saves."""
    argv = argv_of([*OWN, f"--hadar-checkpoint=restart:{time}", "job.sh"])
    found = carried(argv)
    assert (found.checkpoint, found.restart_loss_s) == (True, loss_s)
    assert {"--requeue", "--open-mode=append"} <= set(argv)
    kept = described([*OWN, f"--hadar-checkpoint=restart:{time}", "--no-requeue", "job.sh"])
    assert (kept.checkpoint, kept.restart_loss_s) == (False, 0.0)


# Lines in the script

SCRIPT = """#!/bin/bash
#SBATCH --gpus=2 --job-name="two words"
#HADAR --hadar-model=A3C
# a comment
#HADAR --hadar-steps 300   # three hundred

#HADAR --hadar-checkpoint=yes
echo train
#HADAR --hadar-steps=999
#SBATCH --gpus=8
"""


def test_options_may_stand_in_the_script() -> None:
    """Options are read up to the first command, as in sbatch."""
    assert described(["job.sh"], SCRIPT) == Description(
        workload="A3C", steps=300, gpus=2, checkpoint=True
    )
    assert described(["--", "job.sh"], SCRIPT).steps == 300


def test_the_command_line_wins_over_the_script() -> None:
    """This applies to Hadar's options and to sbatch's."""
    found = described(["--hadar-steps=7", "--gpus=4", "job.sh"], SCRIPT)
    assert (found.steps, found.gpus, found.workload) == (7, 4, "A3C")


def test_lines_that_end_as_on_windows_are_read() -> None:
    """Such a script is described; sbatch reports the error."""
    assert described(["job.sh"], SCRIPT.replace("\n", "\r\n")).steps == 300


def test_only_a_line_break_ends_a_line() -> None:
    """Other characters that Python counts as line breaks do not."""
    assert read_directives("#!/bin/sh\n# a\fb\x1cc\u2028d\n#HADAR --a\n", "#HADAR") == ["--a"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#HADAR --hadar-model 'A (size 64)'", ["--hadar-model", "A (size 64)"]),
        ('#HADAR --a="b c" d', ["--a=b c", "d"]),
        ("#HADAR\t--a", ["--a"]),
        ("#HADAR --a # rest", ["--a"]),
        ("#HADAR", []),
        ("#HADARX --a", []),
        ("# HADAR --a", []),
        ("#HADAR--a", ["--a"]),
        ("#HADAR --a#b c", ["--a"]),
        ("#HADAR --a\\#b\\ c", ["--a#b c"]),
        ("#HADAR --a='x\\'y' \"\\\"\"", ["--a=x'y", '"']),
        (" #HADAR --a", []),
        ("#hadar --a", []),
    ],
)
def test_a_line_is_read_as_a_shell_would(line: str, words: list[str]) -> None:
    """Quotes join words; the mark is at the start of the line, in capitals."""
    assert read_directives(f"#!/bin/sh\n{line}\n", "#HADAR") == words


def test_a_quote_that_does_not_close_is_told_with_its_line() -> None:
    """The error has the number of the line."""
    with pytest.raises(JobSpecError, match="line 3 of the script: #HADAR: no closing '"):
        read_directives("#!/bin/sh\n\n#HADAR --hadar-model='x\n", "#HADAR")


def test_sbatchs_options_do_not_belong_on_our_lines() -> None:
    """sbatch would not see them, so they are an error."""
    assert "#HADAR --gpus=2: only --hadar-... options are allowed there" in fault_of(
        ["job.sh"], "#!/bin/sh\n#HADAR --gpus=2\n"
    )


# The sbatch call


def test_the_call_of_a_held_job() -> None:
    """Hadar's options, the user's words in order, then the script with its arguments."""
    argv = argv_of(["-p", "gpu", *OWN, "--mem=1G", "-sN1", "job.sh", "-N", "7", "--gpus=9"])
    comment = (
        '--comment={"hadar":1,"workload":"A3C","steps":100,"gpus":1,"checkpoint":false,"held":true}'
    )
    assert argv == (
        "sbatch", comment, "--hold", "--gpus=1", "-p", "gpu", "--mem=1G", "-sN1",
        "job.sh", "-N", "7", "--gpus=9",
    )  # fmt: skip


def test_the_call_of_a_job_that_is_not_held() -> None:
    """The call has no --hold, and the description is not marked as held."""
    held, unheld = argv_of([*OWN, "job.sh"]), argv_of([*OWN, "job.sh"], is_held=False)
    assert held[2] == "--hold"
    assert held[3:] == unheld[2:]
    assert carried(held) == replace(carried(unheld), is_held=True)


def test_gpus_are_asked_for_once() -> None:
    """The gang becomes GPU options only if the user's own options request no GPUs."""
    assert "--gpus=4" in argv_of([*OWN, "--hadar-gang=4", "job.sh"])
    shaped = argv_of([*OWN, "--hadar-gang=2x3", "job.sh"])
    assert {"--nodes=3", "--gpus-per-node=2"} <= set(shaped)
    assert "--gpus=1" in argv_of([*OWN, "--gres=craynetwork:4", "job.sh"])
    for given_by_user in (["--gres=gpu:2"], ["-G", "2"], ["--gpus-per-node=2"]):
        _, _comment, _hold, *rest = argv_of([*OWN, *given_by_user, "job.sh"])
        assert rest == [*given_by_user, "job.sh"]
    assert not any(word.startswith("--gpus") for word in argv_of(["job.sh"], SCRIPT))


def test_a_job_that_moves_is_requeued_and_keeps_its_output() -> None:
    """A restart appends to the output file unless the user chose otherwise."""
    own = [*OWN, "--hadar-checkpoint=yes"]
    assert {"--requeue", "--open-mode=append"} <= set(argv_of([*own, "job.sh"]))
    chosen = argv_of([*own, "--open-mode", "truncate", "job.sh"])
    assert "--open-mode=append" not in chosen
    assert "--requeue" not in argv_of([*OWN, "job.sh"])


def test_the_users_comment_is_carried_inside() -> None:
    """The description in the job's comment contains the last comment of the user."""
    argv = argv_of([*OWN, "--comment", "first", "--mem=1", "--comment=second", "job.sh"])
    assert carried(argv).comment == "second"
    assert argv[-2:] == ("--mem=1", "job.sh")
    in_script = argv_of([*OWN, "job.sh"], "#!/bin/sh\n#SBATCH --comment='in the script'\n")
    assert carried(in_script).comment == "in the script"


@pytest.mark.parametrize(
    "words",
    [
        [*OWN],
        [*OWN, "-"],
        [*OWN, "--wrap", "python train.py --hadar-steps=1; echo $HOME"],
        [*OWN, "--wrap=python train.py"],
        [*OWN, "--", "-job.sh", "--hadar-steps=2"],
        [*OWN, "job.sh", "--hadar-nonsense", "--comment=x", "--", "-HN2"],
        ["--wait", *OWN, "job.sh", "arg"],
        ["-HN", "2", *OWN, "job.sh", "arg"],
        ["--part", "gpu", *OWN, "--kill-on-invalid-dep", "yes", "job.sh"],
    ],
)
def test_the_rest_passes_untouched(words: list[str]) -> None:
    """All other words are passed on unchanged, also those that look like Hadar's options."""
    rest = tuple(word for word in words if word not in OWN)
    request = request_of(words)
    assert dict(request.hadar_options) == {"model": "A3C", "steps": "100"}
    assert request.plain_call == ("sbatch", *rest)
    argv = argv_of(words)
    assert argv[len(argv) - len(rest) :] == rest


def test_without_our_options_nothing_is_ours() -> None:
    """A plain sbatch command line is passed on unchanged."""
    words = ["-p", "gpu", "-HN2", "--comment=x", "job.sh", "--hadar-steps=3"]
    request = request_of(words)
    assert not request.hadar_options
    assert request.plain_call == ("sbatch", *words)


hostile = st.text(
    st.sampled_from("a\"'\\\n\r\t|;$`&<>{}[]=,:#- \u2028é🦀\x00\ud800"), min_size=1, max_size=20
)


@given(comment=hostile, value=hostile)
def test_hostile_characters_survive(comment: str, value: str) -> None:
    """Quotes, line breaks, pipes and control characters are kept."""
    argv = argv_of([*OWN, f"--comment={comment}", f"--job-name={value}", "job.sh", value])
    assert carried(argv).comment == comment
    assert argv[-3:] == (f"--job-name={value}", "job.sh", value)
    (ours,) = [word for word in argv if word.startswith("--comment=")]
    assert ours.isascii()
    assert ours.isprintable()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (["--gpus=4"], Shape(1, 4)),
        (["--gpus=4", "--nodes=2"], Shape(2, 2)),
        (["--hadar-gang=4", "-N1-2"], Shape(2, 2)),
        (["--hadar-gang=2x2", "-N1"], Shape(2, 2)),
    ],
)
def test_a_job_with_so_many_tasks_a_node_has_a_fixed_layout(
    options: list[str], shape: Shape
) -> None:
    """With --ntasks-per-node, the number of tasks does not fit fewer nodes."""
    assert described([*OWN, "--ntasks-per-node=1", *options, "job.sh"]).shape == shape


# Unknown values


@pytest.mark.parametrize(
    ("words", "script", "expected"),
    [
        (["--time=2:00:00"], "", 7200.0),
        (["-t90"], "", 5400.0),
        (["--time=1", "--time=2"], "", 120.0),
        ([], "#SBATCH --time=1-0\n", 86_400.0),
        (["-t3"], "#SBATCH --time=1-0\n", 180.0),
    ],
)
def test_a_time_limit_alone_will_do(words: list[str], script: str, expected: float) -> None:
    """Without steps, the limit is used, and the speed is measured under the job's name."""
    found = described(["--hadar-checkpoint=no", *words, "job.sh"], script)
    assert (found.steps, found.limit_s) == (0, expected)
    assert found.workload.startswith("job:job.sh (in ")


def test_the_environment_may_say_the_time_limit_as_it_may_to_sbatch() -> None:
    """SBATCH_TIMELIMIT overrides the script; the command line overrides both."""
    script = "#SBATCH --time=1\n"
    for words, expected in ((["job.sh"], 300.0), (["-t9", "job.sh"], 540.0)):
        words = ["--hadar-checkpoint=no", *words]
        request = request_of(words, script, {"SBATCH_TIMELIMIT": "5"})
        assert describe(request, ESTIMATOR).limit_s == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.sh"], "job:train.sh"),
        (["/home/ada/train.sh", "--lr=1"], "job:train.sh"),
        (["--job-name=big", "train.sh"], "job:big"),
        (["-Jbig", "train.sh"], "job:big"),
        (["--chdir=/home/ada", "--wrap=python train.py"], "job:train.py (in ada~"),
        (["--chdir=/home/ada/bert", "run.sh", "large.yaml"], "job:run.sh (large, in bert~"),
        (["--job-name=fit-2024-03-01", "train.sh"], "job:fit"),
        ([f"--job-name={'x' * 500}", "train.sh"], f"job:{'x' * 51}~"),
    ],
)
def test_work_without_a_model_goes_by_what_it_runs(words: list[str], expected: str) -> None:
    """The job's name, completed where it says nothing; digests of paths and long names follow ~."""
    found = described(["--hadar-steps=5", *words]).workload
    assert found.startswith(expected)
    assert found == expected or "~" in expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hadar-model=ResNet-5"], "similar names: ResNet-50 (batch size 64), ResNet-18"),
        (
            ["--hadar-model=ResNet-50", "--hadar-batch-size=65"],
            "'ResNet-50 (batch size 65)' is not in the throughput table: its throughput will be "
            "measured; similar names: ResNet-50 (batch size 64)",
        ),
        (
            ["--hadar-model=%"],
            "'%' is not in the throughput table: its throughput will be measured",
        ),
        (["--hadar-model=a3c"], None),
        ([], None),
        (["--hadar-throughput=v100=1"], None),
    ],
)
def test_a_model_that_nobody_has_measured_is_no_fault(words: list[str], said: str | None) -> None:
    """A new or misspelt model is accepted, with a note for the user."""
    found = unknown_model(described([*words, "--hadar-steps=5", "job.sh"]), TABLE)
    assert found == said if said is None else said in (found or "")


# Invalid input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hadar-model=A3C"], "--hadar-steps is missing"),
        (["--hadar-model=A3C"], "or --time how long it trains at most"),
        (["--hadar-model=A3C", "--time=0"], "--hadar-steps is missing"),
        (["--hadar-throughput=v100=1", "--time=5"], "--hadar-steps is missing"),
        (["--hadar-copies=2", "--time=5"], "--hadar-steps is missing"),
        (["--hadar-steps=1", "--hadar-batch-size=5"], "--hadar-batch-size 5: of which model?"),
        ([*OWN, "--hadar-steps=0"], "--hadar-steps '0': expected a whole number, 1 or more"),
        ([*OWN, "--hadar-steps=-3"], "--hadar-steps '-3': expected a whole number"),
        ([*OWN, "--hadar-steps=1.5"], "--hadar-steps '1.5': expected a whole number"),
        ([*OWN, "--hadar-steps="], "--hadar-steps '': expected a whole number"),
        ([*OWN, "--hadar-steps", "--mem=1"], "--hadar-steps '--mem=1': expected a whole number"),
        ([*OWN, "--hadar-steps"], "--hadar-steps needs a value"),
        ([*OWN, "--hadar-step=5"], "unknown option --hadar-step; the nearest is --hadar-steps"),
        ([*OWN, "--hadar-modell=x"], "unknown option --hadar-modell; the nearest is --hadar-model"),
        ([*OWN, "--hadar-gang=four"], "--hadar-gang 'four': expected a whole number"),
        ([*OWN, "--hadar-gang=0"], "--hadar-gang '0': expected a whole number"),
        ([*OWN, "--hadar-gang=2x"], "gang '2x': expected GPUs per node x nodes, such as 4x2"),
        ([*OWN, "--hadar-gang=2x0"], "gang '2x0': expected GPUs per node x nodes"),
        ([*OWN, "--hadar-gang=2x2x2"], "gang '2x2x2': expected GPUs per node x nodes"),
        ([*OWN, "--hadar-gang=-2x1"], "gang '-2x1': expected GPUs per node x nodes"),
        *(
            ([*OWN, f"--hadar-checkpoint={text}"], f"--hadar-checkpoint '{text}': expected {told}")
            for text, told in {
                **dict.fromkeys(("maybe", "restart", "restart:", "restart:soon"), "yes, no, or"),
                **dict.fromkeys(("restart:0", "restart:-5m", "yes:20m", "no:1h"), "yes, no, or"),
                **dict.fromkeys(("restart:0.5s", "restart:31d", "restart:0s"), "a time of 1s to"),
            }.items()
        ),
        ([*OWN, "--hadar-restart-cost=-1"], "--hadar-restart-cost '-1': expected a number, 0 or"),
        ([*OWN, "--hadar-restart-cost=inf"], "--hadar-restart-cost 'inf': expected a number"),
        ([*OWN, "--hadar-restart-cost=nan"], "--hadar-restart-cost 'nan': expected a number"),
        ([*OWN, "--hadar-restart-cost=soon"], "--hadar-restart-cost 'soon': expected a number"),
        ([*OWN, "--hadar-throughput=v100=1"], "--hadar-model or --hadar-throughput, not both"),
        (["--hadar-steps=1", "--hadar-throughput=12"], "'12': expected TYPE=STEPS_PER_S"),
        (["--hadar-steps=1", "--hadar-throughput=v100=fast"], "--hadar-throughput 'fast': expect"),
        (["--hadar-steps=1", "--hadar-throughput=v100=-1"], "--hadar-throughput '-1': expected"),
        (["--hadar-steps=1", "--hadar-throughput=v100=0"], "throughput is 0 on every GPU type"),
        (["--hadar-steps=1", "--hadar-throughput=v100=1,"], "'': expected TYPE=STEPS_PER_S"),
        (["--hadar-steps=1", "--hadar-throughput=="], "'=': expected TYPE=STEPS_PER_S"),
        (["--hadar-steps=1", "--hadar-throughput"], "--hadar-throughput needs a value"),
        ([*OWN, "--hadar-model=ResNet-50", "--hadar-batch-size=x"], "--hadar-batch-size 'x'"),
        ([*OWN, "--gpus=0"], "GPUs must be a whole number, 1 to"),
        ([*OWN, "--gpus-per-node=2", "--nodes=many"], "--nodes 'many': expected a whole number"),
        ([*OWN, "--hadar-gpu-memory=big"], "--hadar-gpu-memory 'big': expected a size such as 40G"),
        ([*OWN, "--hadar-types=a100,,k80"], "--hadar-types 'a100,,k80': expected types such as"),
        ([*OWN, "--hadar-types=a 100"], "no GPU types: a 100"),
        ([*OWN, "--hadar-compute-capability=x"], "--hadar-compute-capability 'x': expected"),
        ([*OWN, "--hadar-gang=100000000000"], "GPUs must be a whole number, 1 to"),
        ([*OWN, "--hadar-steps=1" + "0" * 30], "steps must be a whole number, 1 to"),
        ([*OWN, "--gpus=3", "-N2", "--ntasks-per-node=1"], "3 GPUs do not divide evenly"),
        ([*OWN, "--gpus-per-task=1", "-n3", "-N2"], "3 GPUs do not divide evenly over 2 nodes"),
        ([*OWN, "--gpus-per-socket=2"], "--gpus-per-socket is given: give the total"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_the_value(words: list[str], said: str) -> None:
    """The error has the given value and what is accepted."""
    assert said in fault_of([*words, "job.sh"] if words[-1].find("=") > 0 else words)


def test_a_comment_that_is_too_long_is_told() -> None:
    """Slurm's comment holds 1024 characters; the user can shorten their own."""
    with pytest.raises(JobSpecError, match=r"of the 1011 characters .* shorten --comment"):
        argv_of([*OWN, f"--comment={'x' * 1000}", "job.sh"])


def fits(words: Sequence[str], cluster: str) -> None:
    check_fits(described([*words, "job.sh"]), a_cluster(cluster), ESTIMATOR)


@pytest.mark.parametrize(
    ("words", "cluster"),
    [
        ([*OWN], "1xV100"),
        ([*OWN, "--hadar-gang=4"], "2xV100,2xK80"),
        ([*OWN, "--hadar-gang=4"], "1xV100,1xV100,1xK80,1xK80+4xP100"),
        ([*OWN, "--hadar-gang=2x2"], "2xV100,4xK80"),
        (["--hadar-steps=1", "--hadar-throughput=V100=1"], "1xv100"),
        ([*OWN, "--hadar-types=a100,k80", "--hadar-gpu-memory=40G"], "2xA100,2xK80"),
        ([*OWN, "--gpus=a100_1g.5gb:2"], "2xa100_1g.5gb"),
    ],
)
def test_a_gang_that_the_cluster_could_hold_is_taken(words: list[str], cluster: str) -> None:
    """A gang is accepted if the empty cluster could hold it."""
    fits(words, cluster)


@pytest.mark.parametrize(
    ("words", "cluster", "said"),
    [
        ([*OWN, "--hadar-gang=4"], "2xV100", "hold the gang 4x1, 2x2, 1x4 (GPUs per node x nodes)"),
        ([*OWN, "--hadar-gang=4x1"], "2xV100,2xK80", "it has 2 K80, 2 V100 on 2 nodes"),
        ([*OWN, "--hadar-gang=4x1"], "2xV100+2xK80", "hold the gang 4x1"),
        ([*OWN, "--hadar-gang=1x3"], "4xV100,4xV100", "hold the gang 1x3"),
        (
            ["--hadar-steps=1", "--hadar-throughput=a100=1"],
            "2xV100,1xK80",
            "GPU type 'a100' is not in this cluster, which has K80, V100",
        ),
        (
            [*OWN, "--hadar-gpu-memory=40G"],
            "2xV100,1xK80",
            "no GPU type of this cluster suits the job: K80: its memory is 12 GB, 40 GB is needed; "
            "V100: its memory is 16 GB, 40 GB is needed",
        ),
        ([*OWN, "--hadar-gang=2", "--hadar-gpu-memory=40G"], "2xV100,1xA100", "hold the gang 2x1"),
        ([*OWN], "4xa100_1g.5gb", "it is a slice of a GPU, and whole GPUs are requested"),
    ],
)
def test_a_gang_that_the_cluster_can_never_hold_is_refused(
    words: list[str], cluster: str, said: str
) -> None:
    """A job that could never start is not submitted."""
    with pytest.raises(JobSpecError) as caught:
        fits(words, cluster)
    assert said in str(caught.value)


# Forked jobs


FORKED = [*OWN, "--hadar-copies=3", "--hadar-gang=2"]


def test_copies_are_the_tasks_of_an_array() -> None:
    """Copies are held, can be requeued, and have their GPUs on one node each."""
    argv = argv_of([*FORKED, "job.sh"])
    assert {"--hold", "--array=0-2", "--requeue", "--nodes=1", "--gpus-per-node=2"} <= set(argv)
    found = carried(argv)
    assert (found.copies, found.checkpoint, found.shape) == (3, True, Shape(1, 2))


def test_a_copy_has_one_node_however_its_gpus_are_asked_for() -> None:
    """The call has --nodes=1, so that plain Slurm does not spread a copy either."""
    assert "--nodes=1" in argv_of([*OWN, "--hadar-copies=3", "--gpus=4", "job.sh"])


def test_without_hadard_there_is_one_copy() -> None:
    """A job that is not held is submitted as one copy."""
    argv = argv_of([*FORKED, "job.sh"], is_held=False)
    assert not any(word.startswith("--array") for word in argv)
    assert carried(argv).copies == 1


@pytest.mark.parametrize(
    ("asked", "copies"), [("2", 2), ("5", 4), ("auto", 4), ("AUTO", 4), ("1", 1)]
)
def test_no_more_copies_than_nodes_that_suit(asked: str, copies: int) -> None:
    """The number of copies is limited to the nodes on which one could run.

    Types that are missing in the throughput table count as usable.
    """
    cluster = a_cluster("4xV100,2xV100,2xK80,1xV100,4xP100")
    request = request_of([*OWN, f"--hadar-copies={asked}", "--hadar-gang=2", "job.sh"])
    assert describe(request, ESTIMATOR, cluster).copies == copies


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--array=0-3"], "--array is given"),
        (["--no-requeue"], "--no-requeue is given"),
        (["--hadar-checkpoint=no"], "--hadar-checkpoint no"),
        (["--hadar-checkpoint=restart:20m"], "--hadar-checkpoint restart:20m: with --hadar-copies"),
        (["--hadar-gang=2x2"], "2x2 spans nodes"),
        (["--nodes=2"], "--nodes=2 is given"),
        (["-N", "1-4"], "--nodes=1-4 is given"),
        (["--hadar-copies=auto"], "give a number"),
        (["--hadar-copies=0"], "--hadar-copies"),
        (["--hadar-copies=many"], "--hadar-copies"),
    ],
)
def test_what_cannot_be_forked_is_named(words: Sequence[str], told: str) -> None:
    """The error names the conflicting option."""
    assert told in fault_of([*FORKED, *words, "job.sh"])


@pytest.mark.parametrize(
    ("words", "environment", "is_seen"),
    [
        ([], {}, True),
        (["--export=ALL,A=1"], {}, True),
        (["--export=all"], {}, True),
        (["--export=HADAR_COPIES,HADAR_SPOOL=/x,HADAR_ASSIGNMENTS,A"], {}, True),
        (["--export=HADAR_COPIES,A"], {}, False),
        (["--export=NONE"], {}, False),
        ([], {"SBATCH_EXPORT": "NONE"}, False),
        (["--export=ALL"], {"SBATCH_EXPORT": "NONE"}, True),
    ],
)
def test_copies_must_know_that_they_are(
    words: Sequence[str], environment: dict[str, str], is_seen: bool
) -> None:
    """--export must not hide HADAR_COPIES, else each copy would train all steps."""
    request = request_of([*FORKED, *words, "job.sh"], "#SBATCH --export=ALL", environment)
    if is_seen:
        check_exports(request)
    else:
        with pytest.raises(JobSpecError, match="HADAR_COPIES"):
            check_exports(request)
