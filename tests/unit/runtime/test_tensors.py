"""A damaged file of tensors is detected, and no partly written one is visible."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging.tensors import (  # noqa: E402 (torch has to be there)
    TensorFile,
    TensorFileError,
    write_tensors,
)

KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "bool")


def some_tensors() -> dict[str, torch.Tensor]:
    """Return tensors of every type and of unusual shapes."""
    tensors = {kind: torch.arange(6).reshape(2, 3).to(getattr(torch, kind)) for kind in KINDS}
    return tensors | {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Tensors are equal to the bit, facts are equal, and each tied tensor is under its own name."""
    tied = torch.randn(4)
    tensors = some_tensors() | {"one": tied, "other": tied, "part": torch.randn(8)[::2]}
    path = tmp_path / "deep" / "file.safetensors"
    assert write_tensors(path, tensors, {"slot": 3, "done": [[0, 5]]})
    file = TensorFile(path)
    assert file.facts == {"slot": 3, "done": [[0, 5]]}
    assert set(file.names) == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(file.tensor(name), tensor), name
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with pytest.raises(KeyError):
        file.tensor("nobody")


def test_the_first_to_write_a_file_is_the_only_one(tmp_path: Path) -> None:
    """The return value says whether this write was the first."""
    path = tmp_path / "file.safetensors"
    assert write_tensors(path, {"x": torch.zeros(1)}, {}, is_first=True)
    assert not write_tensors(path, {"x": torch.ones(1)}, {}, is_first=True)
    assert float(TensorFile(path).tensor("x")) == 0.0
    assert write_tensors(path, {"x": torch.ones(1)}, {})
    assert float(TensorFile(path).tensor("x")) == 1.0


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_found_out(tmp_path: Path, keep: float) -> None:
    """It is detected wherever it was cut."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, some_tensors(), {"slot": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(TensorFileError, match=r"file\.safetensors"):
        TensorFile(path)


def test_every_changed_byte_of_a_tensor_is_found_out(tmp_path: Path) -> None:
    """A checksum detects it; a file of another format is refused, too."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"x": torch.arange(4.0)}, {})
    whole = path.read_bytes()
    for at in range(1, 17):
        path.write_bytes(whole[:-at] + bytes([whole[-at] ^ 1]) + whole[len(whole) - at + 1 :])
        with pytest.raises(TensorFileError, match="not those that were written"):
            TensorFile(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(TensorFileError):
        TensorFile(path)
    with pytest.raises(FileNotFoundError):
        TensorFile(tmp_path / "nowhere")


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    """The draft is removed and the old file stays."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"x": torch.zeros(1)}, {})
    path.with_name("sub").mkdir()
    with pytest.raises(OSError, match="sub"):
        write_tensors(path.with_name("sub"), {"x": torch.ones(1)}, {})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.safetensors", "sub"]
