"""The agent as a service of the user: systemd, launchd, Windows' task scheduler. Pure.

Each starts ``ringleader up --foreground`` when the user logs in, and again after a
crash, but not after ``ringleader down``.
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

NAME = "ringleader"
LABEL = "dev.ringleader.agent"
TASK = "Ringleader"
FAILED = 2
"""Exit status of a command that must be corrected: starting it again cannot help."""


@dataclass(frozen=True, slots=True)
class UserService:
    """A file and the commands that make the system use it."""

    path: Path
    content: bytes
    text: str
    """The content, for people."""
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    note: str = ""


def systemd_service(
    command: Sequence[str], environment: Mapping[str, str], config_home: Path
) -> UserService:
    """Return the user unit of systemd; Linux."""
    words = " ".join(_systemd_word(word.replace("$", "$$")) for word in command)
    variables = [
        f"Environment={_systemd_word(f'{name}={value}')}"
        for name, value in environment.items()
    ]
    text = "\n".join(
        [
            "[Unit]",
            "Description=Ringleader: this machine in its cluster",
            "",
            "[Service]",
            f"ExecStart={words}",
            *variables,
            "Restart=on-failure",
            "RestartSec=5",
            f"RestartPreventExitStatus={FAILED}",
            "KillMode=process",  # supervisors of jobs outlive the agent
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )
    unit = f"{NAME}.service"
    systemctl = ("systemctl", "--user")
    return UserService(
        config_home / "systemd" / "user" / unit,
        text.encode(),
        text,
        start=(
            (*systemctl, "daemon-reload"),
            (*systemctl, "enable", unit),
            (*systemctl, "restart", unit),  # it may be about to end: start does nothing
        ),
        stop=((*systemctl, "disable", "--now", unit),),
        note="To run it also while you are logged out: loginctl enable-linger",
    )


def _systemd_word(word: str) -> str:
    """Quote a word; systemd would expand % and unescape backslashes."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{word}"'


def launchd_service(
    command: Sequence[str], environment: Mapping[str, str], home: Path, user: int
) -> UserService:
    """Return the launch agent of macOS."""
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    content = plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": dict(environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            "ProcessType": "Interactive",
            "StandardErrorPath": str(home / "Library" / "Logs" / "ringleader.log"),
        }
    )
    domain = f"gui/{user}"
    return UserService(
        path,
        content,
        content.decode(),
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(("launchctl", "bootout", f"{domain}/{LABEL}"),),
    )


def windows_service(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> UserService:
    """Return the scheduled task of Windows, which has no place for variables."""
    program, *arguments = command
    sets = [f"set {name}={value}&&" for name, value in environment.items()]
    if sets:
        words = " ".join(_windows_word(word) for word in command)
        program, line = "cmd.exe", f'/c "{" ".join(sets)} {words}"'
    else:
        line = " ".join(_windows_word(word) for word in arguments)
    text = f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>3</Count></RestartOnFailure>
  </Settings>
  <Actions>
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(line)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""
    path = folder / "ringleader-task.xml"
    task = ("schtasks", "/TN", TASK)
    return UserService(
        path,
        text.encode("utf-16"),
        text,
        start=((*task, "/Create", "/F", "/XML", str(path)), (*task, "/Run")),
        stop=((*task, "/End"), (*task, "/Delete", "/F")),
    )


def _windows_word(word: str) -> str:
    return f'"{word}"' if " " in word or not word else word
