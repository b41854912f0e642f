"""One process saves through DCP's interface; ``ringleader checkpoint`` reads that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from typer.testing import CliRunner, Result

from ringleader import checkpoint
from ringleader.cli.main import app


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    return made.to(torch.bfloat16)


@pytest.fixture
def folder(tmp_path: Path, model: nn.Module) -> Path:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "run", step, model, epoch=step)
    return tmp_path / "run"


def call(*args: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, args)])


def test_list_verify_and_prune(folder: Path) -> None:
    text = call("list", folder).output
    assert "1 of 1" in text
    listed = json.loads(call("list", folder, "--json").output)
    assert [each["step"] for each in listed] == [3, 2, 1]
    assert call("verify", folder).exit_code == 0
    shard = folder / listed[1]["folder"] / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 16
    shard.write_bytes(data)
    found = call("verify", folder)
    assert found.exit_code == 1
    assert f"{shard} is damaged" in found.output
    assert call("verify", folder, "--step", 3).exit_code == 0
    shard.unlink()  # another machine may have it
    text = call("verify", folder, "--step", 2).output
    assert text.endswith("what is here is intact: 0 of 1 files\n")
    assert call("prune", folder, "--keep", 1).exit_code == 0
    assert [path.name for path in folder.iterdir()] == [listed[0]["folder"]]


def test_export_one_file_and_hugging_faces_layout(
    folder: Path, tmp_path: Path, model: nn.Module
) -> None:
    one, many = tmp_path / "out" / "model.safetensors", tmp_path / "hf"
    assert call("export", folder, "--to", one).exit_code == 0
    assert call("export", folder, "--to", many, "--hugging-face").exit_code == 0
    for path in (one, many / "model.safetensors"):
        tensors = load_file(path)
        assert tensors.keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            assert torch.equal(tensors[name], value)
            assert tensors[name].dtype == value.dtype


def test_a_large_model_is_split_with_an_index(
    folder: Path,
    tmp_path: Path,
    model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hugging Face's names; every tensor is in the file that the index says."""
    monkeypatch.setattr("ringleader.checkpoint.export._SHARD_BYTES", 40)
    config, target = tmp_path / "my.json", tmp_path / "hf"
    config.write_text('{"model_type": "mine"}')
    flags = ("--to", target, "--hugging-face", "--config", config)
    assert call("export", folder, *flags).exit_code == 0
    index = json.loads((target / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    names = [f"model-{n:05d}-of-{len(files):05d}" for n in range(1, len(files) + 1)]
    assert files == [f"{name}.safetensors" for name in names]
    state = model.state_dict()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in state.values())
    for file in files:
        for name, value in load_file(target / file).items():
            assert index["weight_map"].pop(name) == file
            assert torch.equal(value, state[name])
    assert index["weight_map"] == {}
    assert (target / "config.json").read_text() == config.read_text()
    config.write_text("no json")
    assert "not a configuration" in call("export", folder, *flags).output


def test_reshard_cuts_a_checkpoint_and_leaves_nothing_after_a_failure(
    folder: Path, tmp_path: Path, model: nn.Module
) -> None:
    target = tmp_path / "many"
    done = call("reshard", folder, "--ranks", 4, "--to", target, "--step", 2)
    assert done.exit_code == 0, done.output
    assert "step 2 for 4 ranks in 3 files" in done.output, "dimensions of 5: 2, 2, 1"
    assert "left out: what only the 1 ranks that saved it have" in done.output
    found = json.loads(call("list", target, "--json").output)[0]
    assert (found["step"], found["ranks"], found["files_here"]) == (2, 4, 3)
    assert call("verify", target).exit_code == 0
    other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    other = other.to(torch.bfloat16)
    loaded = checkpoint.load(target, other)
    assert loaded is not None
    assert loaded.values == {"epoch": 2}
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)

    same = tmp_path / "same"
    assert call("reshard", folder, "--to", same).exit_code == 0
    numbers = []
    for each in (folder, same):
        assert checkpoint.load(each, other) is not None
        numbers.append(torch.rand(3))
    assert torch.equal(*numbers), "as many ranks: nothing is left out"

    assert call("reshard", folder, "--ranks", 2).exit_code == 2, "--to is missing"
    [shard] = target.glob("*/shard-00002.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    refused = call("reshard", target, "--ranks", 2, "--to", tmp_path / "none")
    assert refused.exit_code == 2
    assert f"{shard}: " in refused.output
    assert not any((tmp_path / "none").iterdir())


def test_nothing_there_and_a_wrong_step_are_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    for args in (
        ("list", tmp_path / "nowhere"),
        ("verify", tmp_path / "nowhere"),
        ("export", folder, "--step", 9),
    ):
        found = call(*args)
        assert found.exit_code == 2
        assert "no checkpoint" in found.output
        assert len(found.output.splitlines()) == 1


def test_the_plug_in_of_dcp_and_a_url(tmp_path: Path) -> None:
    """Without pickle: not a byte of its protocol is in the files."""
    for root in (tmp_path / "run", f"memory://{tmp_path}/run"):
        state = {"w": torch.arange(12.0).reshape(3, 4), "n": {"lr": 0.1, "t": (1, 2)}}
        with pytest.warns(UserWarning, match=r"torch.distributed is"):
            dcp_save(
                state,
                storage_writer=checkpoint.Writer(root, 5),
                planner=checkpoint.SavePlanner(),
            )
        loaded = {"w": torch.zeros(3, 4), "n": {"lr": 0.0, "t": (0, 0)}}
        with pytest.warns(UserWarning, match=r"torch.distributed is"):
            dcp_load(
                loaded,
                storage_reader=checkpoint.Reader(root),
                planner=checkpoint.LoadPlanner(),
            )
        assert torch.equal(loaded["w"], state["w"])  # type: ignore[arg-type]
        assert loaded["n"] == state["n"]


def test_a_program_resumes_from_the_folder_of_its_run(
    folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkpoint.resume() is None
    monkeypatch.setenv("RINGLEADER_CHECKPOINT", str(folder))
    found = checkpoint.resume()
    assert found is not None
    assert found.step == 3
    with torch.no_grad():
        next(model.parameters()).zero_()
    loaded = found.load(model)
    assert loaded.values == {"epoch": 3}
    assert next(model.parameters()).abs().sum() > 0
