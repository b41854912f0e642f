"""The service files of ``ringleader up --install``, for paths with all characters."""

from __future__ import annotations

import plistlib
from pathlib import Path
from xml.etree import ElementTree

from ringleader.cli.user_service import (
    launchd_service,
    systemd_service,
    windows_service,
)

COMMAND = ["/opt/my python/bin/python", "-m", "ringleader", "up", "--peers=a&b"]
ENVIRONMENT = {"RINGLEADER_HOME": '/home/ä "1" 50%/$x'}


def test_systemd_gets_every_word_as_it_is() -> None:
    made = systemd_service(COMMAND, ENVIRONMENT, Path("/c"))
    assert made.path == Path("/c/systemd/user/ringleader.service")
    line = 'ExecStart="/opt/my python/bin/python" "-m" "ringleader" "up" "--peers=a&b"'
    assert line in made.text.splitlines()
    variable = r'Environment="RINGLEADER_HOME=/home/ä \"1\" 50%%/$x"'
    assert variable in made.text.splitlines()
    assert "Restart=on-failure" in made.text, "not after 'ringleader down'"
    assert "KillMode=process" in made.text, "supervisors of jobs outlive the agent"
    assert [words[2] for words in made.start] == ["daemon-reload", "enable", "restart"]
    assert {words[3:] for words in made.start[1:]} == {("ringleader.service",)}


def test_launchd_gets_a_property_list_that_it_can_read() -> None:
    made = launchd_service(COMMAND, ENVIRONMENT, Path("/Users/a"), 501)
    read = plistlib.loads(made.content)
    assert read["ProgramArguments"] == COMMAND
    assert read["EnvironmentVariables"] == ENVIRONMENT
    assert read["KeepAlive"] == {"SuccessfulExit": False}
    assert made.path.parent == Path("/Users/a/Library/LaunchAgents")
    assert made.stop == (("launchctl", "bootout", "gui/501/dev.ringleader.agent"),)


def test_the_windows_task_is_valid_xml_with_the_quoted_command() -> None:
    made = windows_service(COMMAND, {}, Path("h"))
    root = ElementTree.fromstring(made.content.decode("utf-16"))
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    action = root.find(f"{space}Actions/{space}Exec")
    assert action is not None
    assert action.findtext(f"{space}Command") == COMMAND[0]
    assert action.findtext(f"{space}Arguments") == "-m ringleader up --peers=a&b"
