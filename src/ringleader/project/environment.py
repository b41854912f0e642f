"""What a project needs of a machine's Python environment, and what a machine has.

Nothing is imported for that, least of all torch: versions are read from the metadata of
the installed distributions.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec

from ringleader.errors import ConfigError
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.project.file_list import list_project
from ringleader.project.imports import find_imports
from ringleader.project.manifest import Name
from ringleader.project.project_files import ProjectFiles
from ringleader.wire import hello as wire_hello

MAX_DISTRIBUTIONS = 500
MAX_BYTES = 256 << 10
"""Largest message of needs or facts."""
UNVERSIONED = "without version"
"""Version of a module that no metadata names: in a folder of PYTHONPATH, or installed
for editing."""

Text = Annotated[
    str,
    msgspec.Meta(max_length=128, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"),
]
"""Shown in terminals of other machines: no control characters."""


class NeededDistribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An installed package that provides modules which the project imports."""

    name: Text
    """As ``pip install`` wants it. If nothing here provides the module: its name."""
    version: Text
    """On the machine where the job was started; empty if it is missing there."""
    modules: Annotated[tuple[Text, ...], msgspec.Meta(max_length=64)]
    """Top-level modules, as ``cv2``."""
    is_optional: bool = False
    """Whether the project goes on without it: ``except ImportError``."""


class EnvironmentNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all machines of a job must have."""

    python: Text
    """Version of the machine where the job was started."""
    ringleader: Text
    """Versions of the protocols between agents and between ranks."""
    distributions: Annotated[
        tuple[NeededDistribution, ...], msgspec.Meta(max_length=MAX_DISTRIBUTIONS)
    ]
    import_folders: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    """Folders of the project, besides the script's, whose modules it imports."""


class EnvironmentFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine has of the needs."""

    python: Text
    ringleader: Text
    versions: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_DISTRIBUTIONS)]
    """Needed distribution -> its version here. A distribution of another name that
    provides the modules counts: ``tensorflow-cpu`` for ``tensorflow``."""


def environment_needs(project: ProjectFiles) -> EnvironmentNeeds:
    """Return what the script imports, as it is installed here; takes up to a second."""
    files = [file.path for file in project.manifest.files]
    return _needs(project.root, project.script, files)


def needs_in_place(script: Path, folder: Path | None = None) -> EnvironmentNeeds:
    """Return the needs of a script whose files do not travel.

    Each machine has them at the same path, and finds the modules as it does now.
    """
    script = script.resolve()
    root = script.parent
    names = [path.name for path in root.glob("*.py")]
    with suppress(ConfigError):  # in the home folder: what lies beside it must do
        listed = list_project(script, folder)
        root, names = listed.root, list(listed.names)
    needs = _needs(root, script.relative_to(root).as_posix(), names)
    return msgspec.structs.replace(needs, import_folders=())


def _needs(root: Path, script: str, files: list[str]) -> EnvironmentNeeds:
    importlib.invalidate_caches()  # a package may just have been installed

    def is_elsewhere(module: str) -> bool:
        return _is_elsewhere(module, root)

    found = find_imports(root, script, files, is_elsewhere)
    provided = metadata.packages_distributions()
    needed: dict[str, NeededDistribution] = {}
    for modules, is_optional in ((found.required, False), (found.optional, True)):
        for dotted in sorted(modules):
            for name in _distributions_of(dotted, provided):
                _add(needed, name, dotted.partition(".")[0], is_optional=is_optional)
    needed.setdefault("torch", _distribution("torch", ("torch",), is_optional=False))
    return EnvironmentNeeds(
        platform.python_version(),
        _protocols(),
        tuple(needed.values())[:MAX_DISTRIBUTIONS],
        found.folders,
    )


def local_facts(needs: EnvironmentNeeds) -> EnvironmentFacts:
    """Return what this Python environment has; call it outside an event loop."""
    importlib.invalidate_caches()
    versions = {each.name: _version(each.name) for each in needs.distributions}
    lacking = [each for each in needs.distributions if not versions[each.name]]
    if lacking:  # slow, and rarely needed: reads the file lists of all distributions
        provided = metadata.packages_distributions()
        for each in lacking:
            others = [n for module in each.modules for n in provided.get(module, ())]
            version = next(filter(None, map(_version, others)), "")
            versions[each.name] = version or _without_metadata(each.modules)
    found = {name: version for name, version in versions.items() if version}
    return EnvironmentFacts(platform.python_version(), _protocols(), found)


def _distributions_of(dotted: str, provided: Mapping[str, list[str]]) -> Iterable[str]:
    """Return the distributions that provide a module, or the module's own name."""
    top = dotted.partition(".")[0]
    names = sorted(set(provided.get(top, ())))
    if len(names) > 1:  # a namespace, as ``google``: whose files are below ``dotted``?
        names = [name for name in names if _has_module(name, dotted)] or names[:1]
    return names or [top]


def _has_module(distribution: str, dotted: str) -> bool:
    """Return whether a distribution has files of the first two parts of a module."""
    first = "/".join(dotted.split(".")[:2])
    files = metadata.files(distribution) or ()
    return any(str(f).startswith((f"{first}/", f"{first}.")) for f in files)


def _add(
    needed: dict[str, NeededDistribution], name: str, top: str, *, is_optional: bool
) -> None:
    before = needed.get(name)
    modules = before.modules if before else ()
    if top not in modules:
        is_optional = is_optional and (before is None or before.is_optional)
        needed[name] = _distribution(name, (*modules, top), is_optional=is_optional)


def _distribution(
    name: str, modules: tuple[str, ...], *, is_optional: bool
) -> NeededDistribution:
    version = _version(name) or _without_metadata(modules)
    return NeededDistribution(name, version, modules, is_optional)


def _version(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name) or ""
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _without_metadata(modules: Iterable[str]) -> str:
    """Return ``UNVERSIONED`` if modules are found that no distribution provides."""
    return UNVERSIONED if all(map(_is_found, modules)) else ""


def _is_elsewhere(module: str, root: Path) -> bool:
    """Return whether Python imports a top-level module from outside of ``root``."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else spec.submodule_search_locations or []
    return not any(Path(each).resolve().is_relative_to(root) for each in places)


def _is_found(module: str) -> bool:
    """Return whether a top-level module can be imported; imports nothing."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _protocols() -> str:
    return f"{PROTOCOL}.{wire_hello.VERSION}"
