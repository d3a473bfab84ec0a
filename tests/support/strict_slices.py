"""What workers compile raises in tests, too, where a slice of bytes ends before it begins.

Python gives b"" there, and mypyc 2.4 raises ``SystemError``: a test of the sources would not see it.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from slipstream_proxy.process import compiled

PACKAGE = "slipstream_proxy."


def cut(value: Any, part: Any) -> Any:
    if isinstance(value, bytes) and isinstance(part, slice):
        start, end, _ = part.indices(len(value))
        if start > end:
            raise SystemError(f"a slice from {part.start} to {part.stop} of {len(value)} bytes")
    return value[part]


class Slices(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.slice, ast.Slice) or not isinstance(node.ctx, ast.Load):
            return node
        bounds = [part or ast.Constant(None) for part in (node.slice.lower, node.slice.upper, node.slice.step)]
        part = ast.Call(ast.Name("slice", ast.Load()), bounds, [])
        return ast.copy_location(ast.Call(ast.Name("__cut__", ast.Load()), [node.value, part], []), node)


def strict(source: bytes | str, path: str) -> CodeType:
    return compile(ast.fix_missing_locations(Slices().visit(ast.parse(source, path))), path, "exec")


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return strict(self.get_data(self.path), self.path)  # never what a __pycache__ has

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__cut__"] = cut
        super().exec_module(module)


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        spec = super().find_spec(fullname, path, target) if fullname.startswith(PACKAGE) else None
        if spec is None or spec.origin is None:
            return None
        place = Path(spec.origin)
        if not place.is_relative_to(compiled.PACKAGE_FOLDER):
            return None
        if place.relative_to(compiled.PACKAGE_FOLDER).as_posix() in compiled.COMPILED_MODULES:
            spec.loader = Loader(fullname, spec.origin)
        return spec


def install() -> None:
    """Before the first of those modules is imported."""
    sys.meta_path.insert(0, Finder())
