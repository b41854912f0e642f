"""``ringleader up --install``: shows, writes and starts the service of this user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from ringleader import settings
from ringleader.cli.terminal import is_interactive, prompt
from ringleader.cli.user_service import (
    UserService,
    launchd_service,
    systemd_service,
    windows_service,
)
from ringleader.errors import ConfigError
from ringleader.node.launch.resident_agent import stop_resident
from ringleader.node.protocol.agent_config import AgentConfig

COMMAND_S = 60.0
_VARIABLES = ("RINGLEADER_HOME", "RINGLEADER_NAME")
"""What the service must know of the environment; TLS files, too."""


def install_service(config: AgentConfig, *, yes: bool) -> None:
    """Show the service, ask, write it and start it.

    Raises ``ConfigError`` if the user refuses, or this system has no service manager.
    """
    service = _service(_command(config))
    _check_tool(service)
    typer.echo(f"This file will be written to {service.path}:\n\n{service.text}")
    typer.echo(f"and these commands will be run:\n\n{_lines(service.start)}\n")
    _confirm("Write it and start it?", yes=yes)
    try:
        service.path.parent.mkdir(parents=True, exist_ok=True)
        service.path.write_bytes(service.content)
    except OSError as exc:
        raise ConfigError(f"{service.path}: cannot be written: {exc}") from exc
    stop_resident(settings.home_directory())  # the service starts its own
    try:
        for command in service.start:
            _run(command)
    except ConfigError:
        with suppress(OSError):
            service.path.unlink()
        raise
    if service.note:
        typer.echo(service.note)


def uninstall_service(*, yes: bool) -> None:
    """Stop the service and remove its file."""
    service = _service([])
    if not service.path.exists():
        raise ConfigError(f"nothing is installed: {service.path} does not exist")
    typer.echo(f"{service.path} will be removed after\n\n{_lines(service.stop)}\n")
    _confirm("Stop and remove it?", yes=yes)
    for command in service.stop:
        try:
            _run(command)
        except ConfigError as exc:  # stopped by hand, or the tool is gone
            typer.echo(f"ringleader up: {exc}", err=True)
    try:
        service.path.unlink()
    except OSError as exc:
        raise ConfigError(f"{service.path}: cannot be removed: {exc}") from exc
    typer.echo("Removed. It does not start at login any more.")


def _command(config: AgentConfig) -> list[str]:
    """Return the command of the service, with the options that the user gave."""
    found = [sys.executable, "-P", "-m", "ringleader", "up", "--foreground"]
    found += [f"--interface={each}" for each in config.interfaces]
    given = {
        "peers": config.peers.strip(","),
        "coordinator": config.coordinator,
        "port": str(config.port or ""),
        "profile": "" if config.profile == "lan" else config.profile,
    }
    found += [f"--{name}={value}" for name, value in given.items() if value]
    if config.coordinator and config.uses_mdns:
        found.append("--mdns")
    if config.warm:
        found.append("--warm")
    return found


def _service(
    command: Sequence[str], env: Mapping[str, str] = os.environ
) -> UserService:
    kept = {
        name: env[name]
        for name in sorted(env)
        if name in _VARIABLES or name.startswith("RINGLEADER_TLS_")
    }
    if sys.platform == "win32":
        return windows_service(command, kept, settings.home_directory())
    if sys.platform == "darwin":
        return launchd_service(command, kept, Path.home(), os.getuid())
    chosen = env.get("XDG_CONFIG_HOME", "")
    folder = Path(chosen) if chosen else Path.home() / ".config"
    return systemd_service(command, kept, folder)


def _check_tool(service: UserService) -> None:
    tool = service.start[0][0]
    if shutil.which(tool) is None:
        text = f"{tool} is not here, so nothing can start it at login"
        raise ConfigError(f"{text}; without: ringleader up, after each login")


def _lines(commands: Sequence[Sequence[str]]) -> str:
    return "\n".join("    " + " ".join(words) for words in commands)


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not is_interactive():
        raise ConfigError("no terminal to ask for confirmation; pass --yes")
    answer = prompt(f"{question} [y/N] ", "nothing was written")
    if answer.reveal().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was written")


def _run(command: Sequence[str]) -> None:
    """Run a command; raises ``ConfigError`` with what it printed if it fails."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"{shown}: {exc}") from exc
    if done.returncode:
        printed = (done.stderr or done.stdout).strip()
        raise ConfigError(f"{shown}: {printed or f'exit status {done.returncode}'}")
