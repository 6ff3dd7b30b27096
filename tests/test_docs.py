"""What the documents show works, and what they list is what there is."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from aquiline.cli import main
from aquiline.cli.app import build_parser
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, SAMPLING_OPTIONS, SAMPLING_RECORDS
from aquiline.cli.parser import record_defaults
from aquiline.cli.serve import SERVER_OPTIONS, SERVER_RECORDS
from aquiline.cli.speculation_aliases import VLLM_KEYS
from aquiline.config import EngineConfig
from aquiline.guided import GuidedParams
from tests.quickstart_model import IS_ON_DISK, PULL_IT
from tests.source_tree import PACKAGE, ROOT, source_files

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CARDS = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "drafts").glob("*/README.md"))]
# But for tables and what is set as code.
MAX_WIDTH = 120
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
PROMPT_FILE = [{"prompt": "Hello"}, {"turns": ["Name a bird.", "Another."]}]
CONVERSATION_FILE = [
    {"messages": [{"role": "user", "content": f"Name bird {n}."}, {"role": "assistant", "content": f"Owl {n}."}]}
    for n in range(3)
]
# What would take hours is asked for little here.
SHORTER = {
    r" --max-tokens \d+": "",
    r"(train-data .*)--num-tokens \d+": r"\1--num-tokens 1 --turns-per-round 2 --max-answer-tokens 8",
    r"--regenerate": "--regenerate --max-answer-tokens 8",
}


def blocks(language: str) -> list[str]:
    """Every fenced block of `language` in the documents."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return [block for path in DOCUMENTS for block in re.findall(pattern, path.read_text(), re.DOTALL | re.MULTILINE)]


def commands(beginning: str) -> list[str]:
    """Every documented command that begins with `beginning`, continued lines joined."""
    joined = "".join(blocks("bash")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith(beginning)]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder that holds only the files the documents speak of."""
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPT_FILE)))
    (tmp_path / "conversations.jsonl").write_text("\n".join(map(json.dumps, CONVERSATION_FILE)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_shown_command_is_one_that_is_run_here() -> None:
    shown = [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    assert sorted(shown) == sorted(commands("aquiline ") + commands("scripts/"))
    assert len(commands("aquiline ")) >= 3


@pytest.mark.parametrize("command", sorted(set(commands("scripts/"))))
def test_shown_scripts_exist_and_parse(command: str) -> None:
    script = ROOT / shlex.split(command)[0]
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("command", sorted(set(commands("aquiline "))))
def test_shown_commands_parse(command: str) -> None:
    assert not re.search(r"[|<>;&]", command), "shell syntax is not run here"
    build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
@pytest.mark.parametrize(
    "command", sorted(set(commands("aquiline ")) - set(commands("aquiline serve")) - set(commands("aquiline train ")))
)
def test_shown_commands_run(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = command
    for pattern, replacement in SHORTER.items():
        shorter = re.sub(pattern, replacement, shorter)
    argv = shlex.split(shorter)[1:]
    answers = argv[0] == "generate" or "--max-tokens" in command
    assert main([*argv, "--max-tokens", "8"] if answers else argv) == 0
    assert capsys.readouterr().out


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: f"{len(block)}-characters")
def test_shown_python_runs(block: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "document", "exec"), {"__name__": "document"})
    assert capsys.readouterr().out


def test_identifiers_of_the_glossary_are_in_the_code() -> None:
    words = re.findall(r"^\| ([^|]*) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    code = "\n".join(module.text for module in source_files(PACKAGE))
    named = [name for word in words for name in re.findall(r"`([^`]+)`", word)]
    assert len(named) > 20
    assert [name for name in named if not re.search(rf"\b{name}\b", code)] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *CARDS], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_prose_is_as_wide_as_code(path: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > MAX_WIDTH] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """What links call the headings of `page`."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_pages_lead_to_headings(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        assert anchor in anchors(path.parent / target if target else path), f"{target}#{anchor}"


def test_every_page_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [path.name for path in DOCUMENTS[1:] if f"(docs/{path.name})" not in readme] == []


def rows(heading: str) -> list[list[str]]:
    """Cells of the option tables of one section of the settings page, without code marks."""
    section = SETTINGS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `--.*\|$", section, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in found]


def subcommand(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """The parser of one of the commands of `parser`."""
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: argparse.ArgumentParser = subparsers.choices[name]
    return found


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The actions of a parser by their option."""
    return {action.option_strings[-1]: action for action in parser._actions if action.option_strings}


def generate_actions() -> dict[str, argparse.Action]:
    """The actions of `aquiline generate` by their option."""
    return options_of(subcommand(build_parser(), "generate"))


def spelt(default: object) -> str:
    """How the settings page writes a default."""
    if default is None or default == () or default == []:
        return "none"
    return "off" if isinstance(default, bool) else str(getattr(default, "text", default))


def test_the_settings_page_lists_every_option_once() -> None:
    listed = re.findall(r"^\| `(--[a-z-]+)`", SETTINGS, re.MULTILINE)
    options = set(generate_actions()) | set(options_of(subcommand(build_parser(), "serve")))
    assert sorted(listed) == sorted(options - {"--help", "--max-num-seqs"})


@pytest.mark.parametrize("heading", ["Model and prompts", "Output"])
def test_defaults_of_the_command_line_are_documented(heading: str) -> None:
    actions = generate_actions()
    wrong = {flag: default for flag, default, _ in rows(heading) if spelt(actions[flag].default) != default}
    assert wrong == ({"--threads": "cores"} if heading == "Model and prompts" else {})


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Speed of whole answers", "offline"),
        ("What one user waits for", "latency"),
        ("A server under load", "serving"),
        ("Kernels", "kernels"),
        ("Beside other engines", "peers"),
        ("Accuracy", "accuracy"),
    ],
)
def test_options_of_measurements_are_documented(heading: str, name: str) -> None:
    section = (ROOT / "docs" / "measuring.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", section, re.MULTILINE))
    options = options_of(subcommand(subcommand(build_parser(), "bench"), name))
    own = set(options) - set(generate_actions()) | {"--json"}
    assert own <= set(listed) <= set(options)
    defaults = {flag: "required" if options[flag].required else spelt(options[flag].default) for flag in listed}
    assert {flag: default.strip("`") for flag, default in listed.items()} == defaults


def test_options_of_reports_are_documented() -> None:
    section = (ROOT / "docs" / "measuring.md").read_text().split("\n## Reports\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| `(.*?)` \|", section, re.MULTILINE))
    options = options_of(subcommand(subcommand(build_parser(), "bench"), "report"))
    assert listed == {flag: spelt(action.default) for flag, action in options.items() if flag != "--help"}


def test_shown_json_and_yaml_is_what_it_looks_like() -> None:
    for block in blocks("json"):
        for line in block.splitlines():
            json.loads(line)
    settings = [yaml.safe_load(block) for block in blocks("yaml")]
    assert settings and all(isinstance(block, dict) for block in settings)


def test_every_variable_of_the_environment_is_in_the_settings() -> None:
    section = SETTINGS.split("\n## Environment\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE)
    code = "\n".join([module.text for module in source_files(PACKAGE)])
    native = "\n".join(path.read_text() for path in sorted((ROOT / "native").glob("*.cpp")))
    read = set(re.findall(r"\"(AQUILINE_[A-Z_]+)\"", code)) | set(re.findall(r"getenv\(\"([A-Z_]+)\"", native))
    assert read and read <= set(listed)
    assert [name for name in listed if name not in code + native] == []


@pytest.mark.parametrize(
    ("heading", "name"), [("Checking a draft", "check"), ("Writing a draft in another layout", "export")]
)
def test_options_of_drafts_are_documented(heading: str, name: str) -> None:
    section = (ROOT / "docs" / "drafts.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", section, re.MULTILINE))
    options = options_of(subcommand(subcommand(build_parser(), "draft"), name))
    assert set(listed) == set(options) - {"--help"}
    engine = {option.flag: spelt(record_defaults(ENGINE_RECORDS)[option.field]) for option in ENGINE_OPTIONS}
    for flag, default in listed.items():
        own = "required" if options[flag].required else spelt(options[flag].default)
        assert default.strip("`") == engine.get(flag, own)


def test_options_of_tune_are_documented() -> None:
    section = (ROOT / "docs" / "planner.md").read_text().split("\n## Costs\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", section, re.MULTILINE))
    options = options_of(subcommand(build_parser(), "tune"))
    assert set(listed) == set(options) - {"--help"} - {option.flag for option in ENGINE_OPTIONS}
    defaults = {flag: spelt(options[flag].default) for flag in listed} | {"--threads": "cores"}
    assert {flag: default.strip("`") for flag, default in listed.items()} == defaults


def test_sampling_fields_and_defaults_are_documented() -> None:
    defaults = record_defaults(SAMPLING_RECORDS)
    guided = {field.name: f"guided.{field.name}" for field in dataclasses.fields(GuidedParams)}
    expected = [
        [
            option.flag,
            guided.get(option.field, option.field),
            spelt(defaults[option.field] if option.default is None else option.default),
        ]
        for option in SAMPLING_OPTIONS
    ]
    assert sorted(row[:3] for row in rows("Sampling")) == sorted(expected)


def test_server_fields_and_defaults_are_documented() -> None:
    defaults = record_defaults(SERVER_RECORDS)
    expected = [[option.flag, option.field, spelt(defaults[option.field])] for option in SERVER_OPTIONS]
    settings = [row[:3] for row in rows("Server") if len(row) == 4]
    assert sorted(settings) == sorted([*expected, ["--api-key-file", "api_keys", "none"]])


def test_words_of_other_engines_are_documented() -> None:
    row = next(line for line in SETTINGS.splitlines() if line.startswith("| `--speculative-config`"))
    assert [key for key in VLLM_KEYS if f"`{key}`" not in row] == []


def test_engine_fields_and_defaults_are_documented() -> None:
    defaults = record_defaults(ENGINE_RECORDS)
    config = EngineConfig()
    place = {
        field.name: f"{part}.{field.name}"
        for part in ("cache", "scheduler", "speculative", "grammars")
        for field in dataclasses.fields(getattr(config, part))
    }
    expected = [
        [option.flag, place.get(option.field, option.field), spelt(defaults[option.field])] for option in ENGINE_OPTIONS
    ]
    assert sorted(row[:3] for row in rows("Engine")) == sorted(expected)
