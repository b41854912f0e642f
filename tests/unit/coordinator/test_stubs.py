"""The committed messages and stubs are those of ``proto/``."""

from __future__ import annotations

from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[3]
SRC, PROTO = ROOT / "src", ROOT / "proto"


def test_the_committed_stubs_are_current(tmp_path: Path) -> None:
    sources = sorted(PROTO.rglob("*.proto"))
    assert sources
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    names = [str(path.relative_to(PROTO)) for path in sources]
    assert protoc.main(["protoc", f"-I{PROTO}", *outputs, *names]) == 0
    made = list(tmp_path.rglob("*.py*"))
    assert len(made) == 3 * len(sources)
    stale = [
        str(name)
        for name in (path.relative_to(tmp_path) for path in made)
        if (tmp_path / name).read_bytes() != (SRC / name).read_bytes()
    ]
    assert not stale, f"run 'make proto': {stale}"
