"""``dagster dev`` as people use it: pages in a browser, the real daemon, the sync job.

One server over one project for all; each test leaves it with everything up to date, but for the
last two.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import Page, sync_playwright

from assets.stage_asset import SYNC_TAG
from foxhunt_pipeline.automation import SYNC
from support.dagster_server import Server, group_members, process_with, serving, until
from support.project import CONFIG, Project

SCREENSHOTS = os.environ.get("FOXHUNT_SCREENSHOTS")
BROWSER_NEEDED = bool(os.environ.get("FOXHUNT_REQUIRE_TEST_DATA"))
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GROUPS = ("market_data", "research_data", "baselines", "tlob", "ppo")
NEW_SESSION = "2024-01-08"
SLOW = CONFIG.replace("epochs = 2\n", "epochs = 5000\n").replace(
    "rows_per_epoch = 512", "patience = 5000\n    rows_per_epoch = 512"
)
"""A training that takes minutes."""


@dataclass
class Served:
    """A server and the pages opened, with what their scripts complained of."""

    server: Server
    nightly: dt.datetime
    complaints: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    """Runs whose pages are looked at in the end."""

    @property
    def until_nightly(self) -> float:
        """Seconds."""
        return (self.nightly - dt.datetime.now(dt.UTC)).total_seconds()

    @property
    def project(self) -> Project:
        return self.server.project


@pytest.fixture(scope="module")
def served(built_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    project = built_project.clone(tmp_path_factory.mktemp("served") / "project")
    project.env |= {
        "FOXHUNT_AUTOMATION__NIGHTLY_TIMEZONE": "UTC",
        "FOXHUNT_AUTOMATION__LANDING_INTERVAL_SECONDS": "5",
    }
    started = False
    while not started:
        # The first full minute by which a server has surely started, on an idle machine.
        nightly = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
        while nightly < dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30):
            nightly += dt.timedelta(minutes=1)
        project.env["FOXHUNT_AUTOMATION__NIGHTLY_TIME"] = f"{nightly:%H:%M}"
        with serving(project) as server:
            started = dt.datetime.now(dt.UTC) < nightly - dt.timedelta(seconds=3)
            if started:
                yield Served(server, nightly)
    shutil.rmtree(project.root, ignore_errors=True)


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(SCREENSHOTS) if SCREENSHOTS else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser_page(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    executable = shutil.which("chromium")
    if executable is None:
        say = pytest.fail if BROWSER_NEEDED else pytest.skip
        say("there is no chromium; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=executable,
            args=list(FLAGS),
            viewport={"width": 1500, "height": 1000},
            base_url=served.server.url,
        )
        page = context.new_page()
        page.on("pageerror", lambda error: served.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: served.complaints.append(said.text) if said.type == "error" else None,
        )
        yield page
        context.close()


def see(page: Page, *texts: str) -> None:
    """Wait until every text is visible."""
    for text in texts:
        page.get_by_text(text, exact=True).locator("visible=true").first.wait_for(timeout=30_000)


def picture(page: Page, key: str) -> tuple[int, int]:
    """Open the plot under a metadata key; its size in pixels once the browser has drawn it."""
    row = page.get_by_role("row").filter(has=page.get_by_text(key, exact=True))
    row.get_by_text("[Show Markdown]").click()
    image = page.locator("img[src^='data:image/png']")
    image.wait_for(timeout=30_000)
    page.wait_for_timeout(700)  # the dialog fades in
    width, height = image.evaluate(
        "async i => { await i.decode(); return [i.naturalWidth, i.naturalHeight] }"
    )
    return int(width), int(height)


def test_the_graph_and_the_pages_of_assets_show_what_was_built(
    served: Served, browser_page: Page, screenshots: Path
) -> None:
    page = browser_page

    def shot(name: str) -> None:
        page.screenshot(path=screenshots / f"{name}.png")

    page.goto("/asset-groups?expanded=" + ",".join(f"global@global:{g}" for g in GROUPS))
    names = ("dbn", "tables", "validated", "features", "labels", "dataset")
    see(page, *GROUPS, *names, "training", "walk_forward", "release")
    page.wait_for_timeout(1_500)
    shot("graph")

    page.goto("/assets/tlob/walk_forward")
    see(page, "Out-of-sample predictions, backtest and scorecard.", "PyTorch", "net_return_bps")
    assert picture(page, "equity") > (600, 300)
    shot("equity")

    page.goto("/assets/dataset")
    see(page, "w000", "w001", "production", "purged", "embargoed")
    shot("dataset")
    assert picture(page, "windows_book") > (600, 150)
    shot("windows")

    page.goto("/assets/tlob/training")
    see(page, "windows_trained", "parameters", "best_epoch")
    assert picture(page, "loss_curves") > (600, 300)
    shot("loss")

    page.goto("/assets/ppo/training")
    assert picture(page, "utility_curves") > (600, 300)
    shot("policy")

    page.goto("/assets/features")
    assert picture(page, "distribution_bars") > (600, 300)
    shot("features")

    page.goto("/assets/market/validated?view=checks")
    see(page, "few_rows_are_quarantined", "Succeeded")
    shot("checks")

    page.goto("/automation")
    see(page, "nightly_retrain", "new_market_data", "sync_when_stale")
    shot("automation")
    assert served.complaints == []


def launched_by(served: Served, tag: str, name: str) -> list[dg.DagsterRun]:
    """Runs of the sync job that a schedule or sensor launched, newest first."""
    with served.project.instance() as instance:
        return list(
            instance.get_runs(filters=dg.RunsFilter(job_name=SYNC, tags={f"dagster/{tag}": name}))
        )


def parts_of(served: Served, run_id: str) -> list[dg.DagsterRun]:
    """The runs that a sync made, oldest first."""
    with served.project.instance() as instance:
        return list(instance.get_runs(filters=dg.RunsFilter(tags={SYNC_TAG: run_id})))[::-1]


def test_the_sensor_and_the_nightly_schedule_fire_under_the_daemon(served: Served) -> None:
    [first] = until(
        lambda: launched_by(served, "sensor_name", "new_market_data"), 60, "the sensor's first run"
    )
    finds_nothing_to_do(served, first)
    # The two apart from one another, whichever comes first without waiting.
    steps = [the_nightly_schedule_fires, the_sensor_takes_a_new_session]
    for step in reversed(steps) if served.until_nightly > 45 else steps:
        step(served)


def finds_nothing_to_do(served: Served, run: dg.DagsterRun) -> None:
    assert served.server.finish(run.run_id) == "SUCCESS"
    assert "Everything is up to date." in served.server.said(run.run_id)


def the_nightly_schedule_fires(served: Served) -> None:
    [run] = until(
        lambda: launched_by(served, "schedule_name", "nightly_retrain"),
        max(served.until_nightly, 0) + 60,
        "the nightly run",
    )
    finds_nothing_to_do(served, run)


def the_sensor_takes_a_new_session(served: Served) -> None:
    server, project = served.server, served.project
    before = project.rows()
    project.simulate(5)

    def arrival() -> str | None:
        runs = launched_by(served, "sensor_name", "new_market_data")
        return runs[0].run_id if len(runs) > 1 else None

    run = served.runs["sync"] = until(arrival, 60, "the sensor's second run")
    assert server.finish(run) == "SUCCESS"
    session, rest = parts_of(served, run)
    assert session.tags["dagster/partition"] == NEW_SESSION
    assert {session.status, rest.status} == {dg.DagsterRunStatus.SUCCESS}
    changed = {place for place, row in project.rows().items() if before.get(place) != row}
    assert changed == {
        *((stage, NEW_SESSION) for stage in ("raw/dbn", "market/tables", "market/validated")),
        *((stage, NEW_SESSION) for stage in ("features", "labels")),
        *((stage, None) for stage in ("dataset", "baselines/walk_forward")),
        *((f"{m}/{step}", None) for m in ("tlob", "ppo") for step in ("training", "walk_forward")),
        *((f"{m}/release", None) for m in ("tlob", "ppo")),
    }
    said = "\n".join(server.said(run))
    assert f"rebuild     raw/dbn {NEW_SESSION}: the session is new" in said
    assert f"(run {session.run_id[:8]})" in said and f"(run {rest.run_id[:8]})" in said


def test_a_sync_is_not_started_twice_and_ends_with_its_run(served: Served) -> None:
    server, project = served.server, served.project
    before = project.rows()
    project.configure(SLOW)
    first = server.launch(SYNC)
    until(lambda: "tlob/training: tlob w000 epoch" in log_of(served, first), 60, "it trains")
    [part] = parts_of(served, first)
    assert part.status == dg.DagsterRunStatus.STARTED
    assert "config models.tlob.train.epochs: 2 -> 5000" in "\n".join(server.said(first)), (
        "the plan is in the log"
    )
    child = process_with(f"sync --within {first}")
    assert os.getpgid(child) == child

    second = server.launch(SYNC)
    time.sleep(4)
    assert (server.status(first), server.status(second)) == ("STARTED", "QUEUED")

    project.configure(CONFIG)
    server.terminate(first)
    assert server.finish(first, 40) == "CANCELED"
    assert group_members(child) == []
    [part] = parts_of(served, first)
    assert part.status == dg.DagsterRunStatus.FAILURE, "it does not go on, nor seem to"
    assert server.finish(second) == "SUCCESS"
    assert parts_of(served, second) == [] and "Everything is up to date." in server.said(second)
    assert project.rows() == before and not project.failures()


def log_of(served: Served, run_id: str) -> str:
    """What the steps of a sync's runs have said so far."""
    with served.project.instance() as instance:
        return "\n".join(
            f"{entry.step_key}: {entry.user_message}"
            for part in instance.get_runs(filters=dg.RunsFilter(tags={SYNC_TAG: run_id}))
            for entry in instance.all_logs(part.run_id)
        ).replace("tlob__training", "tlob/training")


def test_a_sync_that_fails_is_a_failed_run_with_the_reason(served: Served) -> None:
    server = served.server
    served.project.append(
        "foxhunt_pipeline/models/tlob.py",
        """

        def _broken(self: MLP, x: Tensor) -> Tensor:
            raise ArithmeticError("the book is upside down")


        MLP.forward = _broken
        """,
    )
    run = served.runs["failure"] = server.launch(SYNC)
    assert server.finish(run) == "FAILURE"
    with served.project.instance() as instance:
        [failure] = [
            entry.dagster_event.step_failure_data.user_failure_data
            for entry in instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
        ]
    assert "exit code 1" in failure.description
    assert "tlob__training: " in failure.description
    assert "the book is upside down" in failure.description
    [part] = parts_of(served, run)
    assert failure.metadata["all sessions"] == dg.MetadataValue.dagster_run(part.run_id)


def test_an_edited_family_is_marked_once_the_location_is_loaded_anew(served: Served) -> None:
    served.server.reload()
    nodes = served.server.graphql(
        "{ assetNodes { assetKey { path } staleStatus staleCauses { category reason } } }"
    )["assetNodes"]
    found = {"/".join(n["assetKey"]["path"]): n for n in nodes}
    stale = found.pop("tlob/training")
    assert stale["staleStatus"] == "STALE"
    assert {cause["category"] for cause in stale["staleCauses"]} == {"CODE"}
    for name in ("dataset", "ppo/training", "ppo/walk_forward", "ppo/release"):
        assert found[name]["staleStatus"] == "FRESH", name


def test_the_pages_of_runs_link_to_their_parts_and_say_what_failed(
    served: Served, browser_page: Page, screenshots: Path
) -> None:
    page = browser_page
    pages = {
        "sync": (f"/runs/{served.runs['sync']}", "2 runs in "),
        "failure": (f"/runs/{served.runs['failure']}", "the book is upside down"),
        "stale": ("/assets/tlob/training", "Unsynced"),
    }
    for name, (address, text) in pages.items():
        page.goto(address)
        page.get_by_text(text).first.wait_for(timeout=30_000)
        for part in parts_of(served, served.runs[name]) if name in served.runs else ():
            page.locator(f"a[href*='{part.run_id}']").first.wait_for(timeout=30_000)
        page.screenshot(path=screenshots / f"{name}.png")
    assert served.complaints == []
