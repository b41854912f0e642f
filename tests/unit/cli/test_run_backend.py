"""Which backend ``ringleader run`` gives a program that names one, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader import settings
from ringleader.cli.run_command import _export_backend
from ringleader.errors import ConfigError
from ringleader.node.launch.local_modules import find_sources
from ringleader.node.launch.program import find_program
from ringleader.settings import DefaultBackend

UNNAMED = "import torch.distributed as dist\ndist.init_process_group()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGLEADER_DEFAULT", "")  # and as it was at the end
    return tmp_path


def chosen(folder: Path, option: str, script: str, *args: str) -> DefaultBackend:
    (folder / "train.py").write_text(script)
    program = find_program(str(folder / "train.py"), list(args), is_module=False)
    _export_backend(option, program, find_sources(program))
    return settings.default_backend()


@pytest.mark.parametrize(
    ("script", "args", "names"),
    [
        (UNNAMED, (), False),
        ('"""Trains without gloo."""\n' + UNNAMED, (), False),
        (UNNAMED.replace("()", "('gloo')"), (), True),
        (UNNAMED.replace("()", "('cpu:gloo,cuda:nccl')"), (), True),
        (UNNAMED.replace("()", "('nccl')"), (), False),
        ("from transformers import Trainer", ("--ddp_backend", "gloo"), True),
        ("from transformers import Trainer", ("--ddp-backend=GLOO",), True),
        ("from transformers import Trainer", ("igloo.csv",), False),
        ("import settings_of_mine", (), True),
        ("this is no Python", (), True),
    ],
)
def test_a_name_in_the_program_or_its_arguments_is_found(
    script: str, args: tuple[str, ...], names: bool, folder: Path
) -> None:
    (folder / "settings_of_mine.py").write_text("BACKEND = 'gloo'")
    wanted = DefaultBackend.UNNAMED if names else DefaultBackend.LIBRARIES
    assert chosen(folder, "", script, *args) == wanted


def test_the_option_decides_before_the_variable_and_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(folder, "script", UNNAMED) == DefaultBackend.NONE
    assert chosen(folder, "ringleader", UNNAMED) == DefaultBackend.ALL
    monkeypatch.setenv("RINGLEADER_DEFAULT", "0")
    assert chosen(folder, "", UNNAMED) == DefaultBackend.NONE
    assert chosen(folder, "ringleader", UNNAMED) == DefaultBackend.ALL
    with pytest.raises(ConfigError, match="only ringleader can replace"):
        chosen(folder, "nccl", UNNAMED)
