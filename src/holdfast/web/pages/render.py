"""Templates: one environment, where every text is made visible and escaped, and the links that work below any mount.

Data comes from agents, models and the internet. `finalize` makes control, bidirectional and invisible characters visible,
and autoescaping does the rest, so no template has to think of it.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.control import roles
from holdfast.web.auth import Principal, allows
from holdfast.web.context import server_of
from holdfast.web.pages.json_html import exact_html, json_html
from holdfast.words import signs
from holdfast.words.text import compact, cut, span, visible

HERE: Final = Path(__file__).parent.parent
STATIC: Final = HERE / "static"
KILOBYTE: Final = 1024


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page, or a part of one."""
    html = environment().get_template(template).render(**shared(request), **values)
    return HTMLResponse(html, status)


def html(request: Request, template: str, **values: Any) -> str:
    """A part of a page, to be sent as an update."""
    return environment().get_template(template).render(**shared(request), **values)


def shared(request: Request) -> dict[str, Any]:
    """What every template knows."""
    who: Principal | None = getattr(request.state, "principal", None)
    return {
        "link": linker(request),
        "static": functools.partial(_static, request.scope.get("root_path", "")),
        "who": who,
        "csrf": who.csrf if who else "",
        "may": lambda verb: who is not None and allows(request, verb),
        "needs": lambda verb: _needs(request, verb),
        "here": _path(request),
        "read_only": server_of(request).read_only,
    }


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root)


def _needs(request: Request, verb: str) -> str:
    """Why a button is disabled."""
    if server_of(request).read_only:
        return "this server is read-only"
    return f"needs the role {roles.role_for(verb)}"


def linker(request: Request) -> Callable[..., str]:
    """`link("runs", run_id, step=3)`: a path below the mount, every segment quoted. Empty values are left out."""
    root: str = request.scope.get("root_path", "")

    def link(*segments: object, **query: object) -> str:
        path = "".join(f"/{quote(str(s), safe='')}" for s in segments) or "/"
        pairs = [(k.rstrip("_"), v) for k, v in query.items() if v not in (None, "")]
        return f"{root}{path}" + (f"?{urlencode(pairs)}" if pairs else "")

    return link


def _static(root: str, name: str) -> str:
    """The address of a file of ours; its hash makes it safe to cache."""
    return f"{root}/static/{name}?v={_version(name)}"


@functools.cache
def _version(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


@functools.cache
def environment() -> Environment:
    """The environment of all templates."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "span": span,
        "cut": lambda text, limit: cut(visible(str(text)), limit),
        "compact": compact,
        "json": json_html,
        "exact": exact_html,
        "size": size,
        "moment": moment,
        "iso": iso,
        "number": lambda x: f"{x:,}",
        "money": lambda x: f"${x:,.4f}".rstrip("0").rstrip(".") if x else "$0",
    }
    made.globals |= {"run_sign": signs.run_sign, "call_sign": signs.call_sign, "signs": signs}
    return made


def _finalize(value: object) -> object:
    """A text from a run is shown with everything in it that could hide or turn text made visible."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, lines=True)
    return value


def iso(us: int) -> str:
    """A time of the store, as machines read it."""
    try:
        return datetime.datetime.fromtimestamp(us / 1_000_000, datetime.UTC).isoformat(
            timespec="milliseconds"
        )
    except (OverflowError, ValueError, OSError):  # no calendar goes that far
        return ""


def moment(us: int | None, style: str = "relative") -> Markup:
    """A time as an element: UTC without a script; a script makes it relative, or local."""
    if us is None:
        return Markup("")
    shown = iso(us)[:19].replace("T", " ")
    form = '<time datetime="{}" data-show="{}" hx-morph-skip-children>{} UTC</time>'
    return Markup(form).format(iso(us), style, shown)  # noqa: S704  (a constant)


def size(count: int) -> str:
    """Bytes for people."""
    if count < KILOBYTE:
        return f"{count} bytes"
    return f"{count / KILOBYTE:.1f} KB" if count < KILOBYTE**2 else f"{count / KILOBYTE**2:.1f} MB"
