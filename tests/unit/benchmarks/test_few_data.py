"""The study of few data: members of a stack, weight decay, early stopping, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

HADARE = Path(__file__).parents[3] / "benchmarks" / "hadare"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(HADARE))
    import few_data

    torch.set_num_threads(1)
    return few_data


def results(records: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    import few_page

    pairs = few_page.results(records)["pairs"]
    return {(pair["name"], pair["against"]): pair for pair in pairs}


def record(name: str, seed: int, loss: float, **more: Any) -> dict[str, Any]:
    """Return a line of the file."""
    run = {"task": "few images", "optimiser": "sgd", "seed": seed, "decay": 0.0}
    figures = {"loss": loss, "accuracy": 0.7, "time_s": 1.0, "cpu_s": 1.0}
    return {"name": name, "run": run, **figures, "stopped": [64, loss, 0.7], **more}


def test_seeds_have_images_of_their_own(few: ModuleType) -> None:
    """No two seeds train on the same image, and none is in the data that choose or judge."""
    import few_task

    train = few_task.train_data().inputs
    assert train.shape[:2] == (few_task.SEEDS, 2048)
    sets = [
        {image.numpy().tobytes() for image in images.flatten(1)}
        for images in (*train, few_task.validation().inputs, few_task.held_out().inputs)
    ]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 8 * 2048 + 1000 + 2000


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_members_train_as_they_would_alone(few: ModuleType, optimiser: str) -> None:
    """What a member comes to does not depend on the others, and does on its weight decay."""
    decay = {"sgd": 0.05, "adam": 3.0}[optimiser]
    members = tuple(few.Member(seed, each) for seed, each in ((0, 0.0), (1, decay), (1, 0.0)))
    run = few.Run(optimiser, members, copies=2, slot_s=4.0, total_steps=20)
    together = few.train(run)
    for member, found in zip(members, together, strict=True):
        (alone,) = few.train(replace(run, members=(member,)))
        assert found["stopped"][0] == alone["stopped"][0]
        for key in ("loss", "accuracy"):
            assert found[key] == pytest.approx(alone[key], rel=1e-3)
    assert together[1]["loss"] != pytest.approx(together[2]["loss"], rel=1e-3)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_member_is_trained_as_by_torch(few: ModuleType, optimiser: str) -> None:
    """Clipped gradients and weight decay are those of torch's own functions and optimisers."""
    import few_task
    from torch import nn

    decay, rate = 0.05, few_task.RATES[optimiser]
    task = few_task.FewImages((few.Member(3, decay),), optimiser)
    torch.manual_seed(3)
    first, last = nn.Linear(144, 96, bias=False), nn.Linear(96, 10)
    plain = nn.Sequential(first, nn.BatchNorm1d(96), nn.ReLU(), last)
    own: torch.optim.Optimizer = (
        torch.optim.AdamW(plain.parameters(), rate, weight_decay=decay)
        if optimiser == "adam"
        else torch.optim.SGD(plain.parameters(), rate, momentum=0.9, weight_decay=decay)
    )

    class Rows:
        """A copy that trains alone, on the images in their order."""

        model, optimiser = task.network, task.optimiser

        def samples(self, number: int, *, batch_size: int, size: int) -> list[int]:
            return list(range(number * batch_size, (number + 1) * batch_size))

    for number in range(4):
        task.step(Rows(), number)
        rows = slice(number * 32, (number + 1) * 32)
        answers = plain(task.train.inputs[0, rows])
        own.zero_grad()
        nn.functional.cross_entropy(answers, task.train.targets[0, rows]).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        own.step()
    torch.testing.assert_close(task.network.first[0].T, first.weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(task.network.last[0].T, last.weight, rtol=1e-3, atol=1e-4)


def test_stopped_early_is_what_has_the_lowest_loss_on_validation_data(few: ModuleType) -> None:
    """Each member stops at the interval of its own lowest validation loss, and is judged there."""
    members = (few.Member(0), few.Member(1))
    run = few.Run("sgd", members, copies=1, slot_s=64.0, total_steps=768)
    for member, found in zip(members, few.train(run), strict=True):
        losses = [loss for _, loss in found["validation"]]
        assert [steps for steps, _ in found["validation"]] == list(range(64, 769, 64))
        steps, loss, _ = found["stopped"]
        assert losses[steps // 64 - 1] == min(losses)
        assert steps < 768, member
        assert loss < found["loss"]


def test_a_run_is_trained_once(few: ModuleType, tmp_path: Path) -> None:
    """Each member has a line with its name, seed and decay, and is not trained again."""
    path = tmp_path / "runs.jsonl"
    run = few.Run("sgd", (few.Member(0), few.Member(0, 0.1)), copies=1, slot_s=8.0, total_steps=8)
    few.make("one node", run, path)
    few.make("one node", run, path)
    lines = few.records(path)
    assert [line["name"] for line in lines] == ["one node", "one node, weight decay"]
    assert [line["run"]["decay"] for line in lines] == [0.0, 0.1]
    few.make("one node", replace(run, members=(few.Member(1),)), path)
    assert [line["run"]["seed"] for line in few.records(path)] == [0, 0, 1]


def test_weight_decay_is_chosen_on_validation_data_of_seeds_that_do_not_judge(
    few: ModuleType,
) -> None:
    """The lowest mean validation loss at the last step decides, once all have run."""
    assert not set(few.CHOOSING_SEEDS) & set(few.JUDGING_SEEDS)
    lines = []
    for decay, losses in zip(
        few.DECAYS["sgd"], ((3.0, 1.0), (1.4, 1.4), (9.0, 0.1), (2.0, 2.0)), strict=True
    ):
        for seed, loss in zip(few.CHOOSING_SEEDS, losses, strict=True):
            line = record(few.CHOICE, seed, 0.0, validation=[[64, 0.0], [128, loss]])
            lines.append(line | {"run": line["run"] | {"decay": decay}})
    assert few.chosen_decay(lines, "sgd") == few.DECAYS["sgd"][1]
    assert few.chosen_decay(lines[:-1], "sgd") is None
    assert few.chosen_decay(lines, "adam") is None
    runs = few.judged_runs("sgd", 0.25)
    assert len(runs) == 4
    for run in runs.values():
        assert {member.seed for member in run.members} == set(few.JUDGING_SEEDS)
        assert {member.decay for member in run.members} == {0.0, 0.25}


def test_variants_that_stop_early_are_compared(few: ModuleType) -> None:
    """Copies may be better than one node, and worse than one node that is stopped early."""
    records = [
        record(name, seed, loss + 0.01 * seed, stopped=[640, stopped, 0.7])
        for seed in range(3)
        for name, loss, stopped in (("one node", 3.0, 1.0), ("copies, 60 s", 2.0, 1.5))
    ]
    pairs = results(records)
    assert pairs["copies, 60 s", "one node"]["finding"] == "better"
    assert pairs["copies, 60 s", "one node, stopped early"]["finding"] == "worse"
    assert pairs["copies, 60 s, stopped early", "one node, stopped early"]["finding"] == "worse"


def test_the_page_begins_with_what_speaks_against_copies(few: ModuleType) -> None:
    """The verdict names both figures; rows are in the order of the losses, the highest first."""
    import few_page
    import page

    records = [
        record(
            name, seed, loss + 0.01 * seed, stopped=[640, stopped, 0.7],
            validation=[[64, 1.0]], run={"optimiser": "sgd", "seed": seed, "decay": 0.0,
            "task": "few images", "total_steps": 4096},
        )
        for seed in range(3)
        for name, loss, stopped in (("one node", 3.0, 1.0), ("copies, 60 s", 2.0, 1.5))
    ]  # fmt: skip
    finding = few_page.finding(records)
    assert "**not reproduced beyond weight decay and early stopping**" in finding
    assert "loss is worse in 1 of 1, accuracy is no different in 1 of 1" in finding
    text = "\n".join(page._few_data(few_page.section(records)))
    above = text.index("| copies, 60 s | one node, stopped early | +1.010 ± 0.010 ▲")
    assert above < text.index("| copies, 60 s | one node | -1.000 ± 0.000 ▼")
    for without in ([], [record(few.CHOICE, 5, 1.0), record("one node", 0, 1.0)]):
        assert "not measured yet" in "\n".join(page._few_data(few_page.section(without)))
    assert few_page.finding([]) == ""


def test_the_claim_is_reproduced_only_by_loss_and_accuracy(few: ModuleType) -> None:
    """Copies have to be better by both figures, with every remedy that both sides have."""
    import few_page

    def records(accuracy: float) -> list[dict[str, Any]]:
        return [
            record(name, seed, 3.0, stopped=[640, loss + 0.01 * seed, right])
            for seed in range(3)
            for name, loss, right in (("one node", 1.5, 0.6), ("copies, 60 s", 1.0, accuracy))
        ]

    assert "is **reproduced beyond" in few_page.finding(records(0.65))
    assert "is **not reproduced beyond" in few_page.finding(records(0.6))
