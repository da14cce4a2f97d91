"""A damaged file of tensors is detected, and no partly written one is visible."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.files.tensors import (  # noqa: E402
    BLOCK,
    StreamedTensor,
    TensorFile,
    TensorFileError,
)
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402

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
    """It is detected when the file is opened, wherever it was cut."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, some_tensors(), {"slot": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(TensorFileError, match=r"file\.safetensors"):
        TensorFile(path)


def test_every_changed_byte_of_a_tensor_is_found_out(tmp_path: Path) -> None:
    """Its checksum detects it as it is read; a file of another format is refused, too."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"x": torch.arange(4.0), "y": torch.arange(3, dtype=torch.uint8)}, {})
    whole = path.read_bytes()
    for at in range(1, 20):
        path.write_bytes(whole[:-at] + bytes([whole[-at] ^ 1]) + whole[len(whole) - at + 1 :])
        file = TensorFile(path)
        broken, other = ("y", "x") if at < 4 else ("x", "y")
        with pytest.raises(TensorFileError, match="is not what was written"):
            file.tensor(broken)
        with pytest.raises(TensorFileError, match="is not what was written"):
            list(file.blocks(broken))
        assert int(file.tensor(other)[1]) == 1
    path.write_bytes(b"no tensors")
    with pytest.raises(TensorFileError):
        TensorFile(path)
    with pytest.raises(FileNotFoundError):
        TensorFile(tmp_path / "nowhere")


def test_blocks_are_the_tensor_and_may_not_be_exchanged(tmp_path: Path) -> None:
    """A tensor of several blocks is read and written without a second place in memory."""
    path, count = tmp_path / "file.safetensors", 2 * BLOCK + 100
    tensor = torch.arange(float(count)).reshape(4, -1)
    parts = StreamedTensor(
        tensor.dtype, tensor.shape, lambda: iter(tensor.reshape(-1).split(BLOCK))
    )
    write_tensors(path, {"x": parts}, {"slot": 3})
    file = TensorFile(path)
    assert torch.equal(file.tensor("x"), tensor)
    assert torch.equal(torch.cat([block.clone() for block in file.blocks("x")]), tensor.flatten())
    assert file.shapes == {"x": tensor.shape}
    whole = path.read_bytes()
    data, size = whole[-4 * count :], 4 * BLOCK
    path.write_bytes(whole[: -4 * count] + data[size : 2 * size] + data[:size] + data[2 * size :])
    with pytest.raises(TensorFileError, match="is not what was written"):
        TensorFile(path).tensor("x")


def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Its error is the writer's."""

    def blocks() -> Iterator[torch.Tensor]:
        yield torch.zeros(2)
        raise KeyError("broken")

    path = tmp_path / "file.safetensors"
    with pytest.raises(KeyError, match="broken"):
        write_tensors(path, {"x": StreamedTensor(torch.float32, torch.Size([4]), blocks)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_a_safetensors_file(tmp_path: Path) -> None:
    """Its own library reads it."""
    from safetensors.torch import load_file

    path = tmp_path / "file.safetensors"
    write_tensors(path, some_tensors(), {"slot": 3})
    found = load_file(path)
    assert found.keys() == some_tensors().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in some_tensors().items())


def test_a_file_of_the_release_before_is_read_and_checked(tmp_path: Path) -> None:
    """It has one checksum of all tensors."""
    from safetensors.torch import save_file

    path = tmp_path / "file.safetensors"
    tensors = {"a": torch.arange(5.0), "b": torch.arange(3)}
    crc = 0
    for name, tensor in tensors.items():
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.numpy().tobytes(), crc)
    save_file(tensors, path, metadata={"hadar": json.dumps({"slot": 3, "checksum": crc})})
    file = TensorFile(path)
    assert file.facts == {"slot": 3}
    assert torch.equal(file.tensor("a"), tensors["a"])
    save_file(tensors, path, metadata={"hadar": json.dumps({"slot": 3, "checksum": crc + 1})})
    with pytest.raises(TensorFileError, match="not those that were written"):
        TensorFile(path)


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    """The draft is removed and the old file stays."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"x": torch.zeros(1)}, {})
    path.with_name("sub").mkdir()
    with pytest.raises(OSError, match="sub"):
        write_tensors(path.with_name("sub"), {"x": torch.ones(1)}, {})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.safetensors", "sub"]
