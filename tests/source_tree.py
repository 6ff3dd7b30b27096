"""The package's source as syntax trees, for the tests that read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "aquiline"


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        module: the full name, for example `aquiline.request`; for `from package import module` the module itself.
        line: where it is written.
        is_typing_only: it stands under `if TYPE_CHECKING`.
        is_inside_function: it runs when a function is called, not when the file is imported.
    """

    module: str
    line: int
    is_typing_only: bool
    is_inside_function: bool


@dataclass(frozen=True)
class SourceFile:
    """One Python file; `name` is its module's full name, or its path where it belongs to no package."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree, self, is_typing_only=False, is_inside_function=False))

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def source_files(folder: str) -> list[SourceFile]:
    """Every Python file under `folder` of the repository."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(SourceFile(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def _imports(node: ast.AST, file: SourceFile, is_typing_only: bool, is_inside_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, is_typing_only, is_inside_function)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file.shown}:{child.lineno} is a relative import; write the full name"
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                module = submodule if _is_module(submodule) else str(child.module)
                yield Import(module, child.lineno, is_typing_only, is_inside_function)
        else:
            is_guard = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(child, file, is_typing_only or is_guard, is_inside_function or is_function)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return any(file.exists() for file in (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py"))
