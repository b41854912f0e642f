"""Packages that can be installed without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, *, value: int = 1) -> Path:
    """Write a wheel with one module of the same name, which holds ``value``."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VALUE = {value}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
        f"Version: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in files)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in files.items():
            wheel.writestr(each, text)
    return path


def install_folder(wheel: Path, folder: Path) -> None:
    """Install a wheel into a folder for PYTHONPATH."""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
