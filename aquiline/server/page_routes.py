"""The pages at `/` and `/docs`: files beside this module, which need nothing from anywhere else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

FOLDER = Path(__file__).parent / "page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
page_router = APIRouter(include_in_schema=False)


@page_router.get("/")
async def page() -> Response:
    """The page."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


@page_router.get("/docs")
async def description() -> Response:
    """The description of the API, for people."""
    return FileResponse(FOLDER / "docs.html", headers=HEADERS)


@page_router.get("/page/docs.js")
async def description_script() -> Response:
    """What shows the description."""
    return FileResponse(FOLDER / "docs.js", headers=HEADERS)


@page_router.get("/page/app.js")
async def script() -> Response:
    """Its program."""
    return FileResponse(FOLDER / "app.js", headers=HEADERS)


@page_router.get("/page/style.css")
async def style() -> Response:
    """Its looks."""
    return FileResponse(FOLDER / "style.css", headers=HEADERS)
