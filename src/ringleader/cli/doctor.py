"""``ringleader doctor``: finds what is wrong here or on the network, and the fix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ringleader import settings
from ringleader.cli.terminal import exit_on_error, print_tables
from ringleader.doctor.finding import Severity
from ringleader.node.protocol.agent_port import AGENT_PORT

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.doctor.facts import Facts
    from ringleader.doctor.finding import Finding
    from ringleader.doctor.report import Check

_SECONDS = 8.0
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow"}


def doctor(  # noqa: PLR0913 - one parameter per option
    peer: Annotated[
        list[str] | None,
        typer.Option(help="HOST[:PORT] of a node that should answer; repeatable."),
    ] = None,
    interface: Annotated[
        list[str] | None, typer.Option(help="Use this network interface; repeatable.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Also check that the agent could listen on this port.",
        ),
    ] = 0,
    tensor_port: Annotated[
        str,
        typer.Option(
            metavar="PORT[-PORT]",
            help="The ports for tensors that 'ringleader run' is given, to name the "
            "rule that a firewall needs.",
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=3, max=60, help="Stop after this many seconds.")
    ] = _SECONDS,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List every interface that is not used.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
) -> None:
    """Find out why machines do not reach each other, and what to do about it.

    Checks this machine, its network and every node it can find. It joins
    nothing and changes nothing. Exits with 0 if nothing is wrong, else 1.
    """
    import asyncio

    from ringleader.discovery.static_peers import parse
    from ringleader.doctor.diagnose import diagnose
    from ringleader.doctor.examine import Request, examine
    from ringleader.doctor.report import checks

    with exit_on_error("doctor"):
        if tensor_port:
            settings.export({"RINGLEADER_PORTS": tensor_port})
        request = Request(
            home=settings.home_directory(),
            peers=parse(
                ",".join([*(peer or []), settings.peers()]), default_port=AGENT_PORT
            ),
            interfaces=interface or settings.interfaces(),
            port=port,
            tensor_ports=settings.tensor_ports(),
            seconds=seconds,
        )
        facts = asyncio.run(examine(request))
    findings = diagnose(facts)
    looked_at = checks(facts, findings, is_verbose=verbose or as_json)
    if as_json:
        typer.echo(json.dumps(_as_dict(facts, looked_at, findings), indent=1))
    else:
        _show(facts, looked_at, findings)
    raise typer.Exit(1 if findings else 0)


def _as_dict(
    facts: Facts, looked_at: list[Check], findings: list[Finding]
) -> dict[str, object]:
    from ringleader.doctor.report import conclusion

    return {
        "machine": facts.name,
        "took_s": round(facts.took_s, 3),
        "conclusion": conclusion(facts, findings),
        "checks": [
            {"name": c.name, "is_ok": c.is_ok, "text": c.text} for c in looked_at
        ],
        "findings": [
            {
                "code": str(finding.code),
                "severity": str(finding.severity),
                "title": finding.title,
                "text": finding.text,
                "mend": finding.mend,
            }
            for finding in findings
        ],
        "agent_troubles": [t for shot in facts.agents for t in shot.troubles],
    }


def _show(facts: Facts, looked_at: list[Check], findings: list[Finding]) -> None:
    from ringleader.doctor.report import conclusion

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in looked_at:
        state = Text("ok", "green") if check.is_ok else Text("problem", "bold red")
        table.add_row(state, check.name, _text(check.text))
    print_tables(table)
    for shot in facts.agents:
        for trouble in shot.troubles:
            console.print(_text(f"the agent of this machine reports: {trouble}", "dim"))
    console.print()
    if not findings:
        text = f"{conclusion(facts, findings)} ({facts.took_s:.1f} s)"
        console.print(_text(text), soft_wrap=True)
        return
    for finding in findings:
        title = f"{finding.title} ({finding.severity})"
        console.print(Text(title, _STYLES[finding.severity]))
        console.print(Padding(_text(finding.text), (0, 0, 0, 2)))
        console.print(Padding(_text(f"What to do: {finding.mend}"), (0, 0, 1, 2)))


def _text(words: str, style: str = "") -> Text:
    """Return text without control characters: it may come from other machines."""
    return Text("".join(c if c.isprintable() else " " for c in words), style)
