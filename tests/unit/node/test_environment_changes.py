"""Programs that set environment variables are recognised before they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.node.launch.environment_changes import changes_environment
from ringleader.node.launch.local_modules import find_sources
from ringleader.node.launch.program import find_program

CHANGING = [
    "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch",
    "from os import environ\nenviron['A'] = 'b'",
    "import os\nos.environ.setdefault('A', 'b')",
    "import os\nos.environ.update(A='b')",
    "import os\nos.environ |= {'A': 'b'}",
    "import os\ndel os.environ['A']",
    "import os\ndef main():\n    os.putenv('A', 'b')",
    "from dotenv import load_dotenv\nload_dotenv()",
    "print 'Python 2'",
    "\0",
]

READING = [
    "import os\nrank = int(os.environ['RANK'])",
    "import os\nos.environ.get('A')\nvalues = {}\nvalues['A'] = 1\nvalues.update(b=2)",
    "import os\nname = os.getenv('A', '')",
    "",
]


@pytest.mark.parametrize(
    ("source", "changes"),
    [*((s, True) for s in CHANGING), *((s, False) for s in READING)],
)
def test_setting_is_told_from_reading(
    source: str, changes: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    program = find_program(str(script), [], is_module=False)
    assert changes_environment(find_sources(program)) is changes


def test_modules_beside_the_program_count(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tools")
    program = find_program(str(script), [], is_module=False)
    assert not changes_environment(find_sources(program))
    (tmp_path / "tools.py").write_text(CHANGING[0])
    assert changes_environment(find_sources(program))
