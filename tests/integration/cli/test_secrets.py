"""Secrets come from a file or from standard input, not only from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringleader.cli.terminal import read_pin, read_secret_file
from ringleader.errors import ConfigError

PROGRAM = """
from ringleader.cli.terminal import prompt, read_pin, read_secret_file
from pathlib import Path
print("started", flush=True)
print(prompt("Link: ", "no link").reveal())
print(read_pin("work", "-", None).reveal(), flush=True)
print(read_secret_file(Path("-"), "--phrase-file").reveal(), flush=True)
"""


def test_a_link_and_a_pin_are_piped_in_one_after_the_other() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        said, _ = process.communicate(
            "https://desk:8000/#secret\n4711\none two\n", timeout=300
        )
    assert said == "https://desk:8000/#secret\n4711\none two\n"


def test_a_pin_from_a_file_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "pin"
    with pytest.raises(ConfigError, match=r"--pin-file: file .* not found"):
        read_pin("serve", "", file)
    file.write_text(" 4711\n")
    os.chmod(file, 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_pin("serve", "", file)
    os.chmod(file, 0o600)
    found = read_pin("serve", "", file)
    assert found is not None
    assert found.reveal() == "4711"
    assert read_secret_file(file, "--phrase-file").reveal() == "4711"
    with pytest.raises(ConfigError, match="exclude each other"):
        read_pin("serve", "4711", file)


def test_a_pin_in_the_command_line_is_taken_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = read_pin("work", "4711", None)
    assert found is not None
    assert found.reveal() == "4711"
    assert "process list" in capsys.readouterr().err
    assert read_pin("work", "", None) is None
