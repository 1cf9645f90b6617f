"""Digests of source files by their syntax trees, remembered by content.

A digest is that of ``ast.dump`` without bare strings (docstrings): comments and layout are not in
the tree. Parsing a hundred files takes half a second, so digests are kept from process to process
by the SHA-256 of the file that they belong to.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import tempfile
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from foxhunt_pipeline.errors import CodeError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FORMAT = 1
MOST = 5_000
_DYNAMIC = frozenset(
    {
        "__import__",
        "exec",
        "eval",
        "import_module",
        "importlib.import_module",
        "importlib.__import__",
        "importlib.util.spec_from_file_location",
        "runpy.run_module",
        "runpy.run_path",
    }
)


@dataclass(frozen=True)
class Source:
    """Digest of a syntax tree, and the lines on which it imports by name."""

    digest: str
    dynamic: tuple[int, ...]


_known: dict[str, Source] = {}
_recalled: set[str] = set()


def source_of(path: Path) -> Source:
    """A file as it is on disk now. Raises :class:`CodeError` where it does not parse."""
    data = path.read_bytes()
    seen = hashlib.sha256(data).hexdigest()
    if seen not in _known:
        _known[seen] = _read(parse(path, data))
    return _known[seen]


def parse(path: Path, data: bytes | None = None) -> ast.Module:
    """The syntax tree of a file. Raises :class:`CodeError` where it does not parse."""
    try:
        return ast.parse(path.read_bytes() if data is None else data, filename=str(path))
    except SyntaxError as error:
        raise CodeError(
            f"{path}:{error.lineno} does not parse: {error.msg}.", remedy="Mend the line."
        ) from None


def recall(folder: Path) -> None:
    """Take what earlier processes kept in a folder."""
    with suppress(OSError, ValueError, TypeError):
        kept = json.loads(_file(folder).read_text(encoding="utf-8"))
        found = {seen: Source(digest, tuple(lines)) for seen, (digest, lines) in kept.items()}
        _known.update(found)
        _recalled.update(found)


def remember(folder: Path) -> None:
    """Keep what is known for processes to come, if there is anything new."""
    if _known.keys() <= _recalled:
        return
    newest = dict(list(_known.items())[-MOST:])
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as part:
            json.dump({seen: astuple(source) for seen, source in newest.items()}, part)
        Path(part.name).replace(_file(folder))
        _recalled.update(newest)


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, as far as it is names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def _file(folder: Path) -> Path:
    return folder / f"sources-{PYTHON}-{FORMAT}.json"


def _read(tree: ast.Module) -> Source:
    lines = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [inner for inner in block if not _is_text(inner)])
        if isinstance(node, ast.Call) and dotted(node.func) in _DYNAMIC:
            lines.append(node.lineno)
    return Source(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(lines))


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a bare string: a docstring, or one below a field of a class."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
