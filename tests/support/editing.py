"""Edits of Python source as a person would make them, found by name and not by text."""

from __future__ import annotations

import ast
from pathlib import Path


def wrap_result(path: Path, function: str, template: str) -> None:
    """Wrap what the last ``return`` of a function gives: ``"2.0 * ({})"``."""
    text = path.read_text(encoding="utf-8")
    [found] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    value = [node.value for node in ast.walk(found) if isinstance(node, ast.Return)][-1]
    assert value is not None
    _save(path, _replaced(text, value, template))


def reformat(path: Path) -> None:
    """Lose every comment and all layout, reword every docstring, add comments anew."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                node.value = ast.Constant(f"{text} In other words.")
    lines = ast.unparse(tree).splitlines()
    _save(path, "# Rewritten.\n\n\n" + "\n".join(lines) + "\n\n# The end.\n")


def _replaced(text: str, node: ast.expr, template: str) -> str:
    source = ast.get_source_segment(text, node)
    assert source is not None and node.end_lineno is not None and node.end_col_offset is not None
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = text.encode()
    return (data[:start] + template.format(source).encode() + data[end:]).decode()


def _save(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.saving")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
