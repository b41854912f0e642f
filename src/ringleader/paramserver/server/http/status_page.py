"""The status page: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files

HTML = files(__package__).joinpath("status_page.html").read_text("utf-8")

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}
"""Names of workers are untrusted text. If one were ever shown unescaped, the policy
would keep it from loading anything."""
