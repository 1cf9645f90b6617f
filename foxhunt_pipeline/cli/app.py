"""The commands by name. Each imports what it needs when it runs, so that all start fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="An incremental machine-learning pipeline for Databento market data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(rich_markup_mode=None, help="The configuration.", no_args_is_help=True)
data_app = typer.Typer(rich_markup_mode=None, help="The landed market data.", no_args_is_help=True)
releases_app = typer.Typer(
    rich_markup_mode=None, help="The published checkpoints.", no_args_is_help=True
)
index_app = typer.Typer(rich_markup_mode=None, help="What is current.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(releases_app, name="releases")
app.add_typer(index_app, name="index")

Select = Annotated[
    list[str] | None,
    typer.Option(help="Stage or pattern (tlob/*); + before or after for up- or downstream."),
]
Force = Annotated[bool, typer.Option("--force", help="Rebuild whether or not anything changed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project.")] = Path(),
    landing: Annotated[str, typer.Option(help="Folder or s3:// prefix of DBN files.")] = "",
) -> None:
    """Write a commented foxhunt.toml."""
    from foxhunt_pipeline.cli import project

    project.init(folder, landing)


@app.command()
def doctor() -> None:
    """Check landing, stores, models and device; estimate disk and time. Exit code 1 if one
    check fails."""
    from foxhunt_pipeline.cli import doctor as checks

    raise typer.Exit(checks.doctor())


@app.command()
def status() -> None:
    """What is current, what is behind and what failed. Exit code 1 if anything is behind."""
    from foxhunt_pipeline.cli import project

    raise typer.Exit(project.status())


@config_app.command("show")
def config_show(as_json: AsJson = False) -> None:
    """Every value with its origin."""
    from foxhunt_pipeline.cli import project

    project.show_config(as_json)


@app.command()
def plan(select: Select = None, force: Force = False, as_json: AsJson = False) -> None:
    """What would be rebuilt, and why."""
    from foxhunt_pipeline.cli import building

    building.plan(tuple(select or ()), force, as_json)


@app.command()
def sync(
    select: Select = None,
    force: Force = False,
    within: Annotated[str, typer.Option(hidden=True, help="Dagster run that asks for it.")] = "",
) -> None:
    """Rebuild what is stale: one run for each stale session, then one run of the rest."""
    from foxhunt_pipeline.cli import building

    raise typer.Exit(building.sync(tuple(select or ()), force, within))


@app.command()
def demo(
    sessions: Annotated[int, typer.Option(min=3, help="Sessions to simulate.")] = 6,
    symbols: Annotated[str, typer.Option(help="Symbols to simulate.")] = "FOXA,FOXB",
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 7,
) -> None:
    """The whole pipeline: on your landing, or on simulated data if there is none."""
    from foxhunt_pipeline.cli import building

    raise typer.Exit(building.demo(sessions, symbols, seed))


@app.command()
def ingest(
    files: Annotated[list[Path], typer.Argument(help="DBN files.")],
) -> None:
    """Verify DBN files and put the good ones into the landing. Exit code 1 if one is refused."""
    from foxhunt_pipeline.cli import data

    raise typer.Exit(data.ingest(files))


@app.command()
def simulate(
    folder: Annotated[Path, typer.Argument(help="Folder to write the job folder into.")],
    sessions: Annotated[int, typer.Option(min=1, help="Trading sessions.")] = 6,
    symbols: Annotated[str, typer.Option(help="Symbols, comma-separated.")] = "FOXA,FOXB",
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 7,
    martingale: Annotated[
        bool, typer.Option("--martingale", help="A market in which there is nothing to learn.")
    ] = False,
) -> None:
    """Write simulated DBN v3 files: mbp-10, trades, ohlcv-1m and definition."""
    from foxhunt_pipeline.cli import data

    data.simulate(folder, sessions, symbols, seed, martingale)


@data_app.command("ls")
def data_ls(as_json: AsJson = False) -> None:
    """Sessions by schema and instrument, with gaps and what was refused."""
    from foxhunt_pipeline.cli import data

    data.ls(as_json)


@releases_app.command("list")
def releases_list() -> None:
    """Every model's releases: version, stage, figures."""
    from foxhunt_pipeline.cli import models

    models.list_releases()


@releases_app.command("why")
def releases_why(model: Annotated[str, typer.Argument(help="Name of a model.")]) -> None:
    """Why a model's newest candidate is, or is not, champion: each gate with its number."""
    from foxhunt_pipeline.cli import models

    models.why(model)


@index_app.command("rebuild")
def index_rebuild() -> None:
    """Make the index anew from the artifact store."""
    from foxhunt_pipeline.cli import opening

    opening.rebuild_index()
