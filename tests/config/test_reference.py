"""The documentation and the written file are the model's own words."""

from __future__ import annotations

import re
from pathlib import Path

from foxhunt_pipeline.cli.reference import markdown, template
from foxhunt_pipeline.config import Config, built_in_families, leaves, load

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_documentation_is_generated() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == markdown(), (
        "write it: python -m foxhunt_pipeline.cli.reference > docs/configuration.md"
    )


def test_the_documentation_has_every_key_of_every_table() -> None:
    """Against the model's own dump."""
    sections: dict[str, set[str]] = {}
    for part in re.split(r"^## ", markdown(), flags=re.MULTILINE)[1:]:
        sections[part.splitlines()[0]] = set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE))
    dumped: dict[str, set[str]] = {}
    for key, _ in leaves(Config().model_dump(mode="json")):
        table, _, name = key.rpartition(".")
        dumped.setdefault(table or "Top level", set()).add(name)
    dumped["Top level"].discard("models")
    for table, names in dumped.items():
        assert sections[table] == names
    assert {f"models.{name}" for name in built_in_families()} < set(sections)


def test_every_line_of_the_template_uncommented_is_the_default(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = )", r"\1", template(), flags=re.MULTILINE)
    text = text.replace('family = "my_module:FAMILY"', "").replace("context = 64", "")
    (tmp_path / "foxhunt.toml").write_text(text)
    resolved = load(tmp_path, {})
    assert resolved.config == load(None, {}).config
    set_here = {key for key, _, origin in resolved.values() if origin == "foxhunt.toml"}
    documented = {key for key, _ in leaves(Config().model_dump(mode="json"))} - {"models"}
    assert set_here == documented


def test_the_template_names_the_landing_given(tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text(template('s3://desk/"raw"'))
    resolved = load(tmp_path, {})
    assert resolved.landing_url == 's3://desk/"raw"'
    assert [key for key, _, o in resolved.values() if o == "foxhunt.toml"] == ["landing.url"]
