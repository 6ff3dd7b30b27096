"""The page at `/`: it needs no other server, shows true figures, and colours tokens by how they were committed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from aquiline.server.live import WINDOW_SECONDS, LiveFigures
from aquiline.server.page_routes import FOLDER
from aquiline.server.settings import ServerSettings
from aquiline.server.step_report import StepReport
from aquiline.server.submission import Run
from tests.server.serving import QUESTION, Running, toy_llm, toy_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_names_no_other_server() -> None:
    files = sorted(FOLDER.iterdir())
    assert [path.name for path in files] == ["app.js", "docs.html", "docs.js", "index.html", "style.css"]
    for path in files:
        assert not re.search(r"https?:|//[a-z]|@import|innerHTML|\beval\b", path.read_text().replace("// ", "")), path


def test_every_element_of_the_program_is_on_the_page() -> None:
    ids = set(re.findall(r'byId\("([a-z-]+)"\)', (FOLDER / "app.js").read_text()))
    assert ids and ids <= set(re.findall(r'id="([a-z-]+)"', (FOLDER / "index.html").read_text()))


def test_the_page_is_open_and_its_figures_need_the_key(toy_folder: Path) -> None:
    with toy_server(toy_llm(toy_folder), ServerSettings(api_keys=("k",))) as server:
        for path in ("/", "/docs", "/page/app.js", "/page/docs.js", "/page/style.css"):
            response = httpx.get(f"{server.url}{path}")
            assert response.status_code == 200 and "default-src 'none'" in response.headers["content-security-policy"]
        assert httpx.get(f"{server.url}/figures").status_code == 401
        assert httpx.get(f"{server.url}/figures", headers={"Authorization": "Bearer k"}).status_code == 200


def test_figures_are_those_of_the_answers(toy_folder: Path) -> None:
    with toy_server(toy_llm(toy_folder)) as server, server.http() as http:
        body = {"messages": QUESTION, "max_tokens": 30, "aquiline": True}
        told = http.post("/v1/chat/completions", json=body).json()["aquiline"]
        figures = http.get("/figures").json()
    assert (figures["model"], figures["speculate"]) == ("toy", "tree:2x2")
    assert figures["num_committed_tokens"] == told["num_committed_tokens"]
    assert figures["acceptance_length"] == pytest.approx(told["acceptance_length"])
    assert sum(figures["accepted_per_position"]) == told["num_accepted_draft_tokens"]
    assert [load["num_answers"] for load in figures["loads"]] == [1]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = 0.0
    live = LiveFigures(lambda: now)
    live.observe_step(StepReport(0.1, num_running=1), [Run(4, 3, 4)])
    assert live.figures()["tokens_per_second"] == 4 / WINDOW_SECONDS
    now = WINDOW_SECONDS + 1
    assert live.figures()["tokens_per_second"] == 0.0
    assert live.figures()["accepted_per_position"] == [1, 1, 1]
    live.observe_step(StepReport(0.1, num_running=3), [Run(1, 0, 0)])
    assert [load["num_answers"] for load in live.figures()["loads"]] == [1], "two of three answers did not grow"


def shown_by_browser(url: str) -> str:
    """What a page has become when its program has run for three seconds."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    return subprocess.run([*command, url], capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_the_figures(server: Running) -> None:
    httpx.post(f"{server.url}/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 9})
    shown = shown_by_browser(f"{server.url}/")
    assert "toy, --speculate tree:2x2" in shown and "acceptance length" in shown
    assert re.search(r"<dt>committed tokens</dt><dd>[1-9]", shown)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_the_description(server: Running) -> None:
    shown = shown_by_browser(f"{server.url}/docs")
    assert "POST /v1/chat/completions" in shown and "<td>max_completion_tokens</td>" in shown
