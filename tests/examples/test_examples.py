"""Each example runs and says what it promises."""

from __future__ import annotations

from support.project import ROOT, Project

EXAMPLES = ROOT / "examples"


def test_open_assets(built_project: Project) -> None:
    said = built_project.python(EXAMPLES / "open_assets.py")
    assert "4 sessions; rows by view: {'bars': " in said
    assert "2024-01-05 FOX.SIMULATED/" in said
    assert "correlation +" in said or "correlation -" in said
    assert "nan" not in said.partition("mean")[0]


def test_predict_with_a_release(built_project: Project) -> None:
    said = built_project.python(EXAMPLES / "predict_with_release.py")
    [release] = built_project.releases("tlob")
    header, *forecasts = said.splitlines()
    assert header.startswith("tlob: tlob, ")
    assert len(forecasts) == 2  # one symbol, two horizons
    for line in forecasts:
        shares = [float(part.split()[1]) for part in line.rpartition("; ")[2].split(", ")]
        assert abs(sum(shares) - 1) < 0.02
        assert "at 2024-01-05 21:00:00" in line
    assert release.version == "v0001"


def test_an_own_family(project: Project) -> None:
    script = EXAMPLES / "own_family.py"
    said = project.python(script, str(project.root))
    assert "momentum/training" in said
    assert len(project.releases("momentum")) == 1
    rows = project.rows()
    assert {("momentum/training", None), ("momentum/release", None)} <= rows.keys()
    assert project.plan() == []


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "open_assets.py",
        "own_family.py",
        "predict_with_release.py",
    }
