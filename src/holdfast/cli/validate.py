"""`holdfast validate`: what is wrong with a `.tac` file, without running it."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli import text
from holdfast.cli.common import json_option
from holdfast.cli.load import LUA
from holdfast.errors import InvalidInput, NotFound


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@json_option
def validate(files: tuple[str, ...], as_json: bool) -> None:
    """Check .tac files: syntax, declarations, schemas, stages, unknown globals. Nothing is executed but their
    declarations. Prints what is wrong with its line, and exits with 1 if anything is."""
    from holdfast.lua.validate import problems_of

    found = []
    for name in files:
        if not name.endswith(LUA):
            raise InvalidInput(
                f"{name} is not a {LUA} file; `holdfast check` compares Python agents with their runs"
            )
        if not Path(name).is_file():
            raise NotFound(f"file {name} not found")
        found += [
            {"file": name, "line": p.line, "problem": p.says} for p in problems_of(Path(name))
        ]
    if as_json:
        click.echo(text.as_json({"ok": not found, "problems": found}))
    else:
        for one in found:
            click.echo(text.visible(f"{one['file']}:{one['line']}: {one['problem']}"))
        if not found:
            click.echo(f"{', '.join(map(text.visible, files))}: no problem found")
    if found:
        raise click.exceptions.Exit(1)
