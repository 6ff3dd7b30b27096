"""The pages at `/` and `/docs`: files beside this module, which need nothing from anywhere else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

FOLDER = Path(__file__).parent / "page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
FILES = {
    "/": "index.html",
    "/docs": "docs.html",
    "/page/docs.js": "docs.js",
    "/page/app.js": "app.js",
    "/page/style.css": "style.css",
}
page_router = APIRouter(include_in_schema=False)


def _add(path: str, name: str) -> None:
    async def file() -> Response:
        return FileResponse(FOLDER / name, headers=HEADERS)

    page_router.add_api_route(path, file)


for page_path, file_name in FILES.items():
    _add(page_path, file_name)
