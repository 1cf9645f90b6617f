"""Closures over packages written for the test."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foxhunt_pipeline.errors import CodeError
from foxhunt_pipeline.incremental.closure import CodeBase, static_value

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def to(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    to("toy/__init__.py", "")
    to("toy/shared.py", "def add(a, b):\n    return a + b\n")
    to("toy/left.py", "from toy.shared import add\nvalue = add(1, 2)\n")
    to("toy/right.py", "import numpy\nvalue = 3\n")
    yield to
    for name in [name for name in sys.modules if name.partition(".")[0] in ("toy", "loose")]:
        del sys.modules[name]


def version(entry: str, packages: tuple[str, ...] = ("toy",)) -> dict[str, str]:
    return CodeBase(packages).closure([entry]).components()


def test_only_what_is_imported_counts(write: Write) -> None:
    left, right = version("toy.left"), version("toy.right")
    assert {"module toy", "module toy.shared", "module toy.left"} <= left.keys()
    assert "module toy.shared" not in right
    assert "library numpy" in right
    assert "library numpy" not in left
    write("toy/shared.py", "def add(a, b):\n    return b + a\n")
    assert version("toy.left") != left
    assert version("toy.right") == right


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\ndef add(a, b):\n    return a + b\n",
        'def add(a, b):\n    """Say what it does."""\n    return a + b\n',
        '"""Module docstring."""\n\n\ndef add(\n    a,\n    b,\n):\n    return (a + b)\n',
        'def add(a, b):\n    return a + b\n    """Said after the fact."""\n',
    ],
)
def test_comments_docstrings_and_layout_do_not_count(write: Write, same: str) -> None:
    before = version("toy.left")
    write("toy/shared.py", same)
    assert version("toy.left") == before


@pytest.mark.parametrize(
    "line",
    [
        "from .shared import add",
        "from . import shared",
        "from toy import shared",
        "from toy.shared import *",
        "import toy.shared as other",
        "def f():\n    import toy.shared",
        "try:\n    import toy.shared\nexcept ImportError:\n    x = 1",
        "if 1 > 2:\n    import toy.shared",
    ],
)
def test_every_import_that_may_run_counts(write: Write, line: str) -> None:
    write("toy/entry.py", line + "\n")
    assert "module toy.shared" in version("toy.entry")


def test_imports_for_types_alone_do_not_count(write: Write) -> None:
    write(
        "toy/entry.py",
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from toy.shared import add
        """,
    )
    assert "module toy.shared" not in version("toy.entry")


def test_the_init_modules_above_count_with_what_they_import(write: Write) -> None:
    write("toy/inner/__init__.py", "from toy.shared import add\n")
    write("toy/inner/leaf.py", "x = 1\n")
    found = version("toy.inner.leaf")
    assert {"module toy.inner", "module toy.shared"} <= found.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import importlib\nm = importlib.import_module('toy.shared')",
        "from importlib import import_module\nm = import_module('toy.shared')",
        "m = __import__('toy.shared')",
        "exec('import toy.shared')",
    ],
)
def test_a_dynamic_import_is_refused_with_its_place(write: Write, line: str) -> None:
    write("toy/entry.py", line + "\n")
    number = len(line.splitlines())
    with pytest.raises(CodeError, match=rf"entry\.py:{number} imports by name"):
        version("toy.entry")
    allowed = CodeBase(("toy",), frozenset({"toy.entry"}))
    assert "module toy.entry" in allowed.closure(["toy.entry"]).components()


def test_a_loose_module_counts_with_its_own_imports(write: Write) -> None:
    write("loose.py", "from toy.shared import add\nfrom toy import right\n")
    found = version("loose", ("toy", "loose"))
    assert {"module loose", "module toy.shared", "module toy.right", "library numpy"} <= set(found)


def test_a_module_that_is_not_there_is_named(write: Write) -> None:
    with pytest.raises(CodeError, match=r"toy\.absent"):
        version("toy.absent")
    with pytest.raises(CodeError, match="nowhere"):
        version("nowhere", ("nowhere",))
    write("toy/broken.py", "def f(:\n")
    with pytest.raises(CodeError, match=r"broken\.py:1"):
        version("toy.broken")


def test_an_assignment_is_read_without_importing(write: Write, tmp_path: Path) -> None:
    write("toy/family.py", "import nowhere\nFAMILY: F = contract.PolicyFamily(name='x')\n")
    assert static_value(tmp_path / "toy/family.py", "FAMILY") == "PolicyFamily"
    assert static_value(tmp_path / "toy/family.py", "OTHER") is None
