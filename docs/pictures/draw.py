"""Draw the README's pictures: what the command says at a terminal, two pages of the server, and three facts of pyproject.toml.

    make pictures

Nothing is staged: `holdfast demo` runs, its process kills itself, another one finishes; then `holdfast
show` is run at a pseudo-terminal, and what it writes there is drawn as it stands. The badges are files,
so that a page about Holdfast asks no other host for them.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import tomllib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
WIDTH = 120
COMMAND = ["show", "onboard-ada"]

BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
<rect width="{width}" height="20" rx="3" fill="#555"/>
<path d="M{left} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{rest}z" fill="#2a6f97"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14">{name}</text><text x="{text}" y="14">{value}</text>
</g></svg>
"""


def badges() -> dict[str, str]:
    """What pyproject.toml says, as small pictures."""
    project: dict[str, Any] = tomllib.loads(
        (HERE.parent.parent / "pyproject.toml").read_text("utf-8")
    )["project"]
    facts = {
        "version": project["version"],
        "python": project["requires-python"],
        "licence": project["license"],
    }
    return {f"{name}.svg": _badge(name, value) for name, value in facts.items()}


def _badge(name: str, value: str) -> str:
    left, right = 12 + 7 * len(name), 12 + 7 * len(value)
    return BADGE.format(
        name=name, value=escape(value), left=left, rest=right - 3, text=left + 6, width=left + right
    )


def at_a_terminal(folder: Path, command: list[str]) -> str:
    """What a command writes when it is at a terminal of WIDTH columns, colours and all."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 100, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        said = b""
        try:
            while data := os.read(ours, 65536):
                said += data
        except OSError:  # how Linux says that the other side is closed
            pass
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def session() -> str:
    """The demo, really played; then what `show` says of its run."""
    with tempfile.TemporaryDirectory(prefix="holdfast-picture-") as place:
        folder = Path(place) / "demo"
        subprocess.run([HOLDFAST, "demo", "--folder", str(folder)], check=True, capture_output=True)  # noqa: S603
        return at_a_terminal(folder, [HOLDFAST, *COMMAND])


def drawn(said: str) -> str:
    """A terminal's text as a picture, with the fonts that the reader has."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ holdfast " + " ".join(COMMAND), style="bold"))
    console.print(Text.from_ansi(said), soft_wrap=False)
    fonts = CONSOLE_SVG_FORMAT[
        CONSOLE_SVG_FORMAT.index("@font-face") : CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix")
    ]
    plain = CONSOLE_SVG_FORMAT.replace(fonts, "").replace(
        "Fira Code", "ui-monospace, Menlo, DejaVu Sans Mono"
    )
    plain = re.sub(r"<!--.*?-->\s*", "", plain, flags=re.S)
    return console.export_svg(title="holdfast", code_format=plain, unique_id="holdfast")


def pages() -> None:
    """The timeline of a run and the inbox, in Chromium, of the store that the tests of the pages use."""
    sys.path.insert(0, str(HERE.parent.parent / "tests"))
    from support import gallery
    from support.browser import chromium, serving, tab

    with tempfile.TemporaryDirectory(prefix="holdfast-picture-") as place:
        gallery.fill(Path(place) / "h.db")
        with chromium() as browser, serving(str(Path(place) / "h.db")) as base:
            with tab(browser, base, viewport={"width": 1240, "height": 700}) as light:
                light.open("/runs/onboard-ada?call=6").screenshot(path=HERE / "page-run.png")
            with tab(
                browser, base, viewport={"width": 1240, "height": 620}, color_scheme="dark"
            ) as dark:
                dark.open("/runs").screenshot(path=HERE / "page-runs.png")


def main() -> None:
    pages()
    pictures = {**badges(), "show.svg": drawn(session())}
    for name, picture in pictures.items():
        (HERE / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
