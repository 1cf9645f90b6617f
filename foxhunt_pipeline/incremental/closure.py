"""Code versions that nobody types.

The closure of a module is the module itself and every first-party module that it imports,
transitively, with the parents' ``__init__`` modules. Its digest is over syntax trees without
bare strings (comments and layout are not in the tree), the versions of the third-party
distributions imported, and Python's minor version, because ``ast.dump`` differs between them.
Imports under ``TYPE_CHECKING`` do not run and do not count; conditional and function-level
imports may run and count.

grimp gives the import graph of packages. A module outside any package (one file beside the
user's configuration) is read here.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path

import grimp
import grimp.exceptions

from foxhunt_pipeline.errors import CodeError
from foxhunt_pipeline.incremental.sources import PYTHON, dotted, parse, source_of


@dataclass(frozen=True)
class Closure:
    """What a stage's code depends on: digests of modules by name, versions by distribution."""

    modules: Mapping[str, str]
    files: Mapping[str, Path]
    distributions: Mapping[str, str]

    def components(self) -> dict[str, str]:
        """Every part by name, for comparing two versions."""
        return (
            {f"module {name}": digest for name, digest in self.modules.items()}
            | {f"library {name}": version for name, version in self.distributions.items()}
            | {"python": PYTHON}
        )


@dataclass
class CodeBase:
    """The first-party packages as they are on disk now.

    packages: top-level names whose code counts.
    dynamic: modules allowed to import by name, since the stage names what they lead to.
    """

    packages: Sequence[str]
    dynamic: frozenset[str] = frozenset()

    @cached_property
    def _files(self) -> dict[str, Path]:
        """File of each top-level package or module."""
        return {name: _locate(name) for name in self.packages}

    @cached_property
    def _graph(self) -> grimp.ImportGraph:
        names = [name for name, file in self._files.items() if file.name == "__init__.py"]
        try:
            return grimp.build_graph(
                *names,
                include_external_packages=True,
                exclude_type_checking_imports=True,
                cache_dir=None,
            )
        except grimp.exceptions.SourceSyntaxError as error:
            raise CodeError(
                f"{error.filename}:{error.lineno} does not parse: {error.text}.",
                remedy="Mend the line.",
            ) from None

    def closure(self, entry: Iterable[str]) -> Closure:
        """The closure of the entry modules.

        Raises :class:`CodeError` for a module that is not there, or one that imports by name
        without the stage having declared it.
        """
        first_party, external = self._reach(entry)
        modules: dict[str, str] = {}
        files: dict[str, Path] = {}
        for name in sorted(first_party):
            path = self.file(name)
            source = source_of(path)
            if source.dynamic and name not in self.dynamic:
                raise CodeError(
                    f"{path.name}:{source.dynamic[0]} imports by name, so that what {name} "
                    "depends on cannot be seen.",
                    remedy="Import it plainly, or resolve it outside the stage's modules.",
                )
            modules[name] = source.digest
            files[name] = path
        return Closure(modules, files, {name: _version(name) for name in sorted(external)})

    def file(self, module: str) -> Path:
        """Source file of a first-party module."""
        top, *rest = module.split(".")
        root = self._files[top]
        if root.name != "__init__.py":
            return root
        folder = root.parent.joinpath(*rest)
        as_module = folder.with_suffix(".py") if rest else root
        return as_module if as_module.is_file() else folder / "__init__.py"

    def _reach(self, entry: Iterable[str]) -> tuple[set[str], set[str]]:
        """First-party modules and external top-level names within reach of the entries."""
        first_party: set[str] = set()
        external: set[str] = set()
        queue = [name for module in entry for name in _with_parents(module)]
        while queue:
            name = queue.pop()
            top = name.partition(".")[0]
            if top not in self._files:
                if top not in sys.stdlib_module_names:
                    external.add(top)
                continue
            if name in first_party:
                continue
            first_party.add(name)
            for found in self._imports(name):
                queue.extend(_with_parents(found))
        return first_party, external

    def _imports(self, name: str) -> Iterable[str]:
        top = name.partition(".")[0]
        if self._files[top].name != "__init__.py":
            return self._loose_imports(self._files[top])
        if name not in self._graph.modules:
            raise CodeError(
                f"There is no module {name} in {self._files[top].parent}.",
                remedy="Check the name in the configuration.",
            )
        return self._graph.find_modules_directly_imported_by(name)

    def _loose_imports(self, path: Path) -> Iterable[str]:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if name.partition(".")[0] in self._files and name in self._graph.modules:
                        yield name


def packages_of(first_party: Iterable[str], families: Iterable[str]) -> tuple[str, ...]:
    """Top-level names whose code counts: this package, those configured and those of families
    given as ``module:object``."""
    names = ["foxhunt_pipeline", *first_party]
    names += [family.partition(":")[0].partition(".")[0] for family in families]
    return tuple(dict.fromkeys(names))


def static_value(path: Path, name: str) -> str | None:
    """Name of the callable whose result a module assigns to ``name`` at top level, unimported."""
    for node in parse(path).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call):
                return dotted(value.func).rpartition(".")[2]
    return None


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _locate(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise CodeError(
            f"The package {name} cannot be found.",
            remedy="Install it (pip install -e), or put it beside foxhunt.toml.",
        )
    return Path(spec.origin)


@lru_cache(maxsize=1024)
def _version(top: str) -> str:
    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        owners = metadata.packages_distributions().get(top, [])
    return "+".join(f"{owner} {metadata.version(owner)}" for owner in sorted(owners)) or "absent"
