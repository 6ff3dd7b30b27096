"""The shape of the code base: who may import whom, how large things may be, and what is public."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable

import pytest

import aquiline
from tests.source_tree import PACKAGE, ROOT, source_files

PUBLIC_NAMES = {
    "AquilineError",
    "CacheConfig",
    "CompletionOutput",
    "ConsistencyError",
    "DownloadError",
    "DraftMismatchError",
    "EndpointError",
    "EngineConfig",
    "FinishReason",
    "GrammarConfig",
    "GuidedParams",
    "InternalError",
    "InvalidParameterError",
    "LLM",
    "ModelFormatError",
    "ModelNotFoundError",
    "Objective",
    "PromptError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "SpeculateTable",
    "SpeculationFigures",
    "SpeculativeConfig",
    "TokenLogprob",
    "TrainingDataError",
    "TrainingDivergedError",
    "UnsupportedFeatureError",
    "UserError",
    "parse_speculation",
}

# A module may import its own layer and the layers named beside it. Everything may import the records.
RECORDS = {"errors", "config", "guided", "request", "speculation", "speculation_figures", "withdrawal"}
LAYERS = {
    "files": {"gguf_file", "atomic_file", "json_line"},
    "machine": {"cores"},
    "text": {"tokenizer", "hf_tokenizer", "gguf_tokenizer", "tokenizer_parts", "chat_template", "token_bytes"},
    "store": {"model_store", "shipped_drafts"},
    "kernels": {"kernels"},
    "models": {"models"},
    "engine": {"engine"},
    "llm": {"llm", "step_costs"},
    "training": {"training"},
    "benchmark": {"benchmark"},
    "server": {"server"},
    "cli": {"cli", "__main__"},
}
BELOW: dict[str, set[str]] = {
    "records": set(),
    "files": {"records"},
    "machine": {"records"},
    "text": {"records", "files"},
    "store": {"records", "files"},
    "kernels": {"records"},
    "models": {"records", "files", "kernels"},
    "engine": {"records", "files", "text", "kernels", "models"},
    "llm": {"records", "machine", "text", "store", "kernels", "models", "engine"},
    "training": {"records", "files", "machine", "text", "store", "kernels", "models", "engine", "llm"},
    "benchmark": {"records", "text", "store", "kernels", "models", "engine", "llm"},
    "server": {"records", "text", "llm"},
    "cli": {"records", "files", "text", "store", "engine", "llm", "training", "benchmark", "server"},
}
NO_TORCH = {
    "scheduler",
    "planner",
    "plan",
    "planner_choice",
    "cost_model",
    "tree_families",
    "cache",
    "commit",
    "finish",
    "stream",
    "schedule",
    "trace",
}
NO_TORCH |= {"request_limits", "host_tree", "suffix_automaton", "lookup_policy", "step_trace", "chrome_trace"}
NO_TORCH |= {"own_shapes"}
OPTIONAL_DEPENDENCIES = {"xgrammar", "triton", "vllm", "matplotlib"}
IMPORTED_AS = {"pyyaml": "yaml"}
# Where a program or a thread would end: there everything is caught, and reported.
OUTERMOST_HANDLERS = {"aquiline/cli/app.py", "aquiline/server/engine_thread.py", "aquiline/server/event_pump.py"}

MAX_LINES = {"aquiline/kernels": 400, "tests": 500}
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
MAX_TUPLE_FIELDS = 3

MODULES = source_files(PACKAGE)
EVERYTHING = MODULES + source_files("tests")
BY_NAME = {module.name: module for module in MODULES}


def layer_of(name: str) -> str:
    """The layer of the module `name`; a new top-level module has to be given one here."""
    top = name.split(".")[1]
    if top in RECORDS:
        return "records"
    layers = [layer for layer, members in LAYERS.items() if top in members]
    assert layers, f"aquiline/{top} is in no layer; add it to LAYERS"
    return layers[0]


def loaded_with(name: str) -> list[str]:
    """Modules that importing `name` imports itself, its parent packages included and typing-only imports not."""
    parents = name.split(".")[:-1]
    return [".".join(parents[:depth]) for depth in range(1, len(parents) + 1)] + imported_by(name)


def imported_by(name: str) -> list[str]:
    """Modules that the file of `name` imports when it is loaded."""
    imports = BY_NAME[name].imports if name in BY_NAME else ()
    return [found.module for found in imports if not found.is_typing_only and not found.is_inside_function]


def reachable(name: str, neighbours: Callable[[str], list[str]]) -> set[str]:
    """Everything reached from `name` in one or more steps."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for found in set(neighbours(waiting.pop())) - seen:
            seen.add(found)
            waiting.append(found)
    return seen


def test_imports_point_downwards() -> None:
    problems = []
    for module in MODULES:
        own = layer_of(module.name) if module.name != PACKAGE else ""
        allowed = BELOW[own] | {own} if own else set(BELOW) - {"cli"}
        for found in module.imports:
            if found.module.startswith(f"{PACKAGE}.") and layer_of(found.module) not in allowed:
                problems.append(f"{module.shown}:{found.line} imports {found.module}, which is not below it")
    assert not problems


def test_records_use_only_the_standard_library() -> None:
    for name in RECORDS:
        tops = {found.module.split(".")[0] for found in BY_NAME[f"{PACKAGE}.{name}"].imports}
        assert tops <= sys.stdlib_module_names | {PACKAGE}, name


def test_integer_modules_never_load_torch() -> None:
    checked = [module.name for module in MODULES if module.name.split(".")[-1] in NO_TORCH | RECORDS | {"cli"}]
    assert len(checked) >= len(NO_TORCH | RECORDS)
    loading = [name for name in checked if "torch" in {found.split(".")[0] for found in reachable(name, loaded_with)}]
    assert not loading


def test_there_are_no_import_cycles() -> None:
    assert not [module.name for module in MODULES if module.name in reachable(module.name, imported_by)]


def test_imports_stand_at_the_top() -> None:
    problems = []
    for module in MODULES:
        if module.name != PACKAGE and layer_of(module.name) != "cli":
            for found in module.imports:
                if found.is_inside_function and found.module.split(".")[0] not in OPTIONAL_DEPENDENCIES:
                    problems.append(f"{module.shown}:{found.line} imports {found.module} inside a function")
    assert not problems


def test_only_declared_dependencies_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=!~\[ ]", entry)[0] for entry in project["dependencies"]}
    imported = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in declared}
    allowed = imported | OPTIONAL_DEPENDENCIES | {PACKAGE}
    for module in MODULES:
        tops = {found.module.split(".")[0] for found in module.imports}
        assert tops <= allowed | sys.stdlib_module_names, module.shown


def test_files_are_short() -> None:
    problems = []
    for file in EVERYTHING:
        limit = next((lines for folder, lines in MAX_LINES.items() if file.shown.startswith(folder)), MAX_FILE_LINES)
        if file.text.count("\n") > limit:
            problems.append(f"{file.shown} has {file.text.count(chr(10))} lines; at most {limit}")
    assert not problems


def test_functions_are_short_and_take_few_parameters() -> None:
    problems = []
    for file in EVERYTHING:
        for function in file.functions:
            num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
            arguments = function.args
            parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            num_parameters = sum(parameter.arg not in ("self", "cls") for parameter in parameters)
            if num_lines > MAX_FUNCTION_LINES or num_parameters > MAX_PARAMETERS:
                size = f"{num_lines} lines and {num_parameters} parameters"
                problems.append(f"{file.shown}:{function.lineno} {function.name} has {size}")
    assert not problems


def test_long_tuples_are_records() -> None:
    problems = []
    for module in MODULES:
        for function in module.functions:
            returned = function.returns
            if isinstance(returned, ast.Subscript) and ast.unparse(returned.value) == "tuple":
                num_fields = len(returned.slice.elts) if isinstance(returned.slice, ast.Tuple) else 1
                if num_fields > MAX_TUPLE_FIELDS:
                    problems.append(f"{module.shown}:{function.lineno} returns {num_fields} values; make a record")
    assert not problems


def test_handlers_name_what_they_catch() -> None:
    """Only the outermost handlers swallow everything; others may clean up or translate, and then raise."""
    problems = []
    for file in EVERYTHING:
        for handler in (node for node in ast.walk(file.tree) if isinstance(node, ast.ExceptHandler)):
            names = set(re.findall(r"\w+", ast.unparse(handler.type))) if handler.type else {"BaseException"}
            swallows = not isinstance(handler.body[-1], ast.Raise)
            if names & {"Exception", "BaseException"} and swallows and file.shown not in OUTERMOST_HANDLERS:
                problems.append(f"{file.shown}:{handler.lineno}")
    assert not problems


def test_only_the_command_line_prints() -> None:
    problems = []
    for module in MODULES:
        if module.name.split(".")[1:2] not in (["cli"], ["benchmark"]):
            for call in (node for node in ast.walk(module.tree) if isinstance(node, ast.Call)):
                if ast.unparse(call.func) == "print":
                    problems.append(f"{module.shown}:{call.lineno}")
    assert not problems


def test_comments_neither_defer_work_nor_decorate() -> None:
    problems = []
    for file in EVERYTHING:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX)\b|[-=#*]{4}", token.string):
                problems.append(f"{file.shown}:{token.start[0]} {token.string}")
    assert not problems


def test_environment_variables_are_documented() -> None:
    documented = (ROOT / "docs" / "settings.md").read_text()
    problems = []
    for module in MODULES:
        texts = [node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant)]
        for name in map(str, texts):
            if re.fullmatch(r"(AQUILINE|HF|XDG)_[A-Z_]+", name) and f"`{name}`" not in documented:
                problems.append(f"{module.shown} uses {name}, which docs/settings.md lacks")
    assert not problems


def test_public_names_are_those_listed_here() -> None:
    assert sorted(aquiline.__all__) == sorted(PUBLIC_NAMES)
    assert not [name for name in PUBLIC_NAMES if getattr(aquiline, name, None) is None]


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = aquiline.no_such_name
