"""Finds the newest checkpoint that is intact, and replays the journals after it.

If the last checkpoint is damaged, the one before it and the journal in between give the
same state. If that is impossible, the run goes on from the last state that can be
restored, and a sentence says what is lost. Damaged files are renamed, not deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ringleader.errors import ConfigError
from ringleader.paramserver.server.storage import checkpoint, journal
from ringleader.paramserver.server.storage.checked_files import DamagedFile
from ringleader.paramserver.server.storage.checkpoint import CheckpointContent
from ringleader.paramserver.server.storage.journal_records import JournalRecord

DAMAGED = ".damaged"
"""Suffix of files that were damaged, or belong to what was lost by damage."""

Apply = Callable[[JournalRecord, bytes], None]


@dataclass(slots=True)
class RunFiles:
    """The files of a run that is resumed."""

    out: Path
    content: CheckpointContent
    """The newest checkpoint that is intact."""
    has_lost: bool = False
    """Something that was acknowledged cannot be restored."""
    notes: list[str] = field(default_factory=list)
    """What is damaged, and what is lost by it, in sentences."""
    _damaged: dict[int, DamagedFile] = field(default_factory=dict)
    """The damaged checkpoints after it, by version."""

    @classmethod
    def find(cls, out: Path) -> Self | None:
        """Find the files in a directory; None if it has no run yet.

        Raises ConfigError if there is a run, and none of its checkpoints is intact.
        """
        damaged: dict[int, DamagedFile] = {}
        for found in checkpoint.find_all(out):
            try:
                return cls(out, checkpoint.read(found), _damaged=damaged)
            except DamagedFile as exc:
                damaged[found.version] = exc
        what_to_do = "restore the directory from a backup, or choose another --out"
        if damaged:
            first = damaged[max(damaged)]
            text = f"none of the checkpoints can be used: {first}"
            raise ConfigError(f"{out}: {text}; {what_to_do}")
        if any(path.stat().st_size for path in checkpoint.find_journals(out).values()):
            raise ConfigError(f"{out}: all checkpoints are missing; {what_to_do}")
        return None

    def replay(self, apply: Apply, version: Callable[[], int]) -> tuple[Path, int]:
        """Apply the records of the journals after the checkpoint, in their order.

        ``version`` returns the version that they led to. Returns the journal to go on
        with, and the offset of its end.
        """
        path, end = checkpoint.journal_path(self.out, self.content.found.version), 0
        damage = _missing(path)
        while damage is None:
            end = 0
            try:
                for entry in journal.read(path):
                    apply(entry.record, entry.body)
                    end = entry.end
            except DamagedFile as exc:
                damage = exc
                break
            following = checkpoint.journal_path(self.out, version())
            if following == path or not following.exists():
                damage = _missing(following) if version() in self._damaged else None
                break
            path = following
        if damage is not None or self._damaged:
            self._describe(damage, version())
            self._set_aside(path)
        elif unknown := journal.doubt(path, end):
            text = f"what was acknowledged after version {version()} is lost"
            self.notes.append(f"{unknown}, {text}. Resumed at version {version()}.")
        return path, end

    def _describe(self, damage: DamagedFile | None, version: int) -> None:
        newest = max(self._damaged, default=0)
        self.has_lost = damage is not None or version < newest
        found = [*self._damaged.values(), *([damage] if damage else [])]
        text = ". ".join(f"{each.path} is damaged: {each.why}" for each in found)
        if self.has_lost:
            least = f" (up to version {newest} or later)" if newest > version else ""
            result = (
                f"Resumed at version {version}; what was acknowledged after that"
                f"{least} is lost. Workers join again by themselves"
            )
        else:
            begin = self.content.found.version
            result = f"Resumed from version {begin} and its journal: nothing is lost"
        self.notes.append(f"{text}. {result}.")

    def _set_aside(self, current: Path) -> None:
        """Rename what is damaged, or was lost and must not be replayed later."""
        try:
            for damaged in self._damaged.values():
                _rename(damaged.path.parent)
            if self.has_lost:
                journals = checkpoint.find_journals(self.out)
                versions = {path: version for version, path in journals.items()}
                last = versions.get(current, self.content.found.version)
                for version, path in journals.items():
                    if version > last:
                        _rename(path)
                        journal.end_path(path).unlink(missing_ok=True)
                if current.exists():
                    shutil.copyfile(current, f"{current}{DAMAGED}")
        except OSError as exc:
            text = f"{exc.filename}: cannot be renamed: {exc.strerror}"
            raise ConfigError(f"{self.out}: {text}") from exc


def _missing(path: Path) -> DamagedFile | None:
    return None if path.exists() else DamagedFile(path, "it is missing")


def _rename(path: Path) -> None:
    target = Path(f"{path}{DAMAGED}")
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(path, target)
