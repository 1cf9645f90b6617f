"""Baselines: closed forms, spans, and what a new session costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import HORIZONS, Chain, Market

from foxhunt_pipeline.datasets.reader import WindowData, open_window
from foxhunt_pipeline.evaluation.annual import sessions_per_year
from foxhunt_pipeline.evaluation.baselines import BASELINES, PENALTIES, ridge, unconditional
from foxhunt_pipeline.evaluation.scores import Scores, session_of


def window(chain: Chain, name: str = "w000") -> WindowData:
    return open_window(chain.task("x", {"dataset": chain.dataset}), chain.data, name, "bars")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(Market(tmp_path_factory.mktemp("market"), seed=3, linear=0.3, sessions=5))


def test_ridge_is_the_least_squares_solution_of_the_augmented_system(chain: Chain) -> None:
    data = window(chain)
    fit = ridge(data.train, data.validation)
    rows = data.train.rows(1)
    x = data.train.gather(rows, 1)[:, 0].astype(np.float64)
    y = data.train.take("y", rows).astype(np.float64)
    n, f = x.shape
    left = np.vstack([x - x.mean(axis=0), np.sqrt(n * fit.penalty) * np.eye(f)])
    right = np.vstack([y - y.mean(axis=0), np.zeros((f, len(HORIZONS)))])
    weights = np.linalg.lstsq(left, right)[0]
    np.testing.assert_allclose(fit.weights, weights, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(fit.intercept, y.mean(axis=0) - x.mean(axis=0) @ weights, atol=1e-12)
    assert fit.weights[0, 1] > 5 * abs(fit.weights[2, 1])


def test_ridge_takes_the_penalty_that_errs_least_on_validation(chain: Chain) -> None:
    signal, noise = window(chain), window(Chain(Market(chain.market.folder / "n", seed=8)))
    assert ridge(signal.train, signal.validation).penalty < 1
    assert ridge(noise.train, noise.validation).penalty == max(PENALTIES)


def test_unconditional_is_counted_from_the_training_rows(chain: Chain) -> None:
    data = window(chain)
    mean, frequencies = unconditional(data.train)
    rows = data.train.rows(1)
    trend = data.train.take("trend", rows)
    np.testing.assert_allclose(mean, data.train.take("y", rows).astype(float).mean(axis=0))
    for column in range(len(HORIZONS)):
        counts = np.array([(trend[:, column] == c).sum() + 1 for c in range(3)])
        np.testing.assert_allclose(frequencies[column], counts / (len(rows) + 3))


def test_each_window_predicts_its_own_test_span_alone(chain: Chain) -> None:
    artifact, task = chain.baselines, chain.baselines_task
    for w in chain.data.windows:
        if not w.test_sessions:
            assert f"predictions/bars/{w.name}" not in artifact.items
            continue
        item = artifact.items[f"predictions/bars/{w.name}"]
        assert set(item.files) == {f"{name}.npz" for name in BASELINES}
        for name in BASELINES:
            scores = Scores.load(task.path(item, f"{name}.npz"))
            assert {session_of(s) for s in scores.streams} == set(w.test_sessions)
            assert len(scores.ts) == len(chain.market.symbols) * chain.market.rows


def test_losses_and_positions_are_those_of_the_definition(chain: Chain) -> None:
    artifact, task = chain.baselines, chain.baselines_task
    item = artifact.items["predictions/bars/w001"]
    data = window(chain, "w001")
    rows = data.train.rows(1)
    scale = np.sqrt((data.train.take("y", rows).astype(float) ** 2).mean(axis=0))

    still = Scores.load(task.path(item, "last_value.npz"))
    for number, segment in enumerate(data.test.segments):
        y = segment.y.astype(float)
        mine = still.stream == still.streams.index(segment.stream.id)
        assert number == still.streams.index(segment.stream.id)
        np.testing.assert_allclose(still.loss[mine], ((y / scale) ** 2).mean(axis=1), rtol=1e-5)
    assert np.isfinite(still.loss).sum() == 2 * (200 - max(HORIZONS))

    flat = Scores.load(task.path(item, "flat.npz"))
    assert not flat.position.any() and not flat.gross.any() and not flat.cost.any()
    held = Scores.load(task.path(item, "buy_and_hold.npz"))
    one = held.position[held.stream == 0]
    assert (one[:198] == 1).all() and (one[198:] == 0).all()


def test_a_new_session_computes_only_its_window(tmp_path: Path) -> None:
    first = Chain(Market(tmp_path, sessions=4, rows=60))
    before = first.baselines
    second = Chain(Market(tmp_path, sessions=5, rows=60), known=first.known)
    after = second.baselines
    assert second.baselines_task.computed == ["predictions/bars/w002", "scorecard/bars"]
    for name in ("predictions/bars/w000", "predictions/bars/w001"):
        assert after.items[name] == before.items[name]


def test_scorecard_has_every_window_and_session(chain: Chain) -> None:
    card = chain.baselines.items["scorecard/bars"].figures
    assert set(card) == set(BASELINES)
    ridge_card = card["ridge"]
    assert list(ridge_card["windows"]) == ["w000", "w001", "w002"]
    assert list(ridge_card["sessions"]) == list(chain.data.sessions[2:])
    total = sum(s["net_return_bps"] for s in ridge_card["sessions"].values())
    assert ridge_card["overall"]["net_return_bps"] == pytest.approx(total)
    assert set(ridge_card["overall"]["horizons"]) == {str(h) for h in HORIZONS}
    assert "cross_entropy" in card["mean"]["overall"]["horizons"]["1"]
    assert card["flat"]["overall"]["sharpe"] is None
    assert card["last_value"]["overall"]["loss"] == pytest.approx(1, rel=0.3)


def test_a_year_has_as_many_sessions_as_the_calendar(chain: Chain) -> None:
    assert sessions_per_year(chain.data, "bars", {}) == 252
    assert sessions_per_year(chain.data, "bars", {"XNAS.ITCH": "24/7"}) == 366
