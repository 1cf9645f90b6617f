"""Walk-forward evaluation of models: spans, numbers, memo, determinism."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import CLASSES, HORIZONS, POLICY, PRODUCT, Chain, Market

from foxhunt_pipeline.checkpoints.format import load
from foxhunt_pipeline.datasets.reader import open_window
from foxhunt_pipeline.errors import ViewUnavailableError
from foxhunt_pipeline.evaluation.forecasting import forecast
from foxhunt_pipeline.evaluation.scores import Portfolio, Scores, session_of
from foxhunt_pipeline.models.contract import Forecast
from foxhunt_pipeline.training.rebuild import forecaster

CONTEXT = 4


def scores_of(chain: Chain, window: str) -> Scores:
    item = chain.walk_forward.items[f"predictions/{window}"]
    return Scores.load(chain.walk_forward_task.path(item, "model.npz"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(Market(tmp_path_factory.mktemp("market"), seed=3, skill=0.3, sessions=5))


def test_each_window_predicts_its_own_test_span_alone(chain: Chain) -> None:
    names = [name for name in chain.walk_forward.items if name != "scorecard"]
    assert names == ["predictions/w000", "predictions/w001", "predictions/w002"]
    for window in chain.data.windows[:3]:
        scores = scores_of(chain, window.name)
        assert {session_of(s) for s in scores.streams} == set(window.test_sessions)


def test_forecasts_are_those_of_the_windows_own_checkpoint(chain: Chain) -> None:
    task = chain.walk_forward_task
    for window in ("w000", "w002"):
        checkpoint = load(task.path(chain.training.items[window], "model.safetensors"))
        weight = checkpoint.tensors["weight"].numpy()
        scale = np.array(checkpoint.header.extra["target_scale"], np.float32)
        data = open_window(task, chain.data, window, "bars")
        scores = scores_of(chain, window)
        for segment in data.test.segments:
            mine = scores.stream == scores.streams.index(segment.stream.id)
            sign = np.sign(segment.raw[:, 0] * segment.raw[:, 1])
            decided = np.arange(len(sign)) >= CONTEXT - 1
            np.testing.assert_array_equal(scores.decided[mine], decided)
            np.testing.assert_allclose(
                scores.forecast[mine][decided], sign[decided, None] * weight * scale, rtol=1e-6
            )
            assert np.isnan(scores.forecast[mine][~decided]).all()
            assert not scores.position[mine][~decided].any()


def test_batches_do_not_change_a_forecast(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    task = chain.walk_forward_task
    checkpoint = load(task.path(chain.training.items["w000"], "model.safetensors"))
    test = open_window(task, chain.data, "w000", "bars").test
    rows = test.rows(CONTEXT, labelled=False)
    model = forecaster(checkpoint, PRODUCT)
    whole = forecast(model, test, rows).expected
    monkeypatch.setattr("foxhunt_pipeline.evaluation.forecasting.BATCH", 7)
    np.testing.assert_array_equal(forecast(model, test, rows).expected, whole)


def test_same_inputs_same_digests(tmp_path: Path) -> None:
    digests = [
        Chain(Market(tmp_path / str(i), sessions=4, rows=80), family=family).walk_forward
        for i, family in enumerate((PRODUCT, PRODUCT, POLICY, POLICY))
    ]
    assert digests[0].data_version == digests[1].data_version
    assert digests[2].data_version == digests[3].data_version
    assert digests[0].data_version != digests[2].data_version


def test_a_new_session_evaluates_only_its_window(tmp_path: Path) -> None:
    first = Chain(Market(tmp_path, sessions=4, rows=60))
    before = first.walk_forward
    second = Chain(Market(tmp_path, sessions=5, rows=60), known=first.known)
    after = second.walk_forward
    assert second.walk_forward_task.computed == ["predictions/w002", "scorecard"]
    assert after.items["predictions/w001"] == before.items["predictions/w001"]


def test_a_classifier_is_traded_by_its_slope_on_validation_rows(tmp_path: Path) -> None:
    chain = Chain(Market(tmp_path, seed=3, skill=0.4, sessions=4), family=CLASSES)
    task = chain.task("x", {"dataset": chain.dataset})
    scores = scores_of(chain, "w000")
    lean = scores.probabilities[..., 2] - scores.probabilities[..., 0]
    rows = scores.decided
    data = open_window(task, chain.data, "w000", "bars")
    checkpoint = load(task.path(chain.training.items["w000"], "model.safetensors"))
    known = data.validation.rows(CONTEXT)
    p = forecast(forecaster(checkpoint, CLASSES), data.validation, known).probabilities
    assert p is not None
    y = data.validation.take("y", known).astype(float)
    for column in range(len(HORIZONS)):
        s = p[:, column, 2] - p[:, column, 0]
        slope = np.linalg.lstsq(s[:, None], y[:, column])[0][0]
        expected = max(slope, 0.0) * lean[rows, column]
        np.testing.assert_allclose(scores.forecast[rows, column], expected, rtol=1e-4, atol=1e-12)
    assert scores.forecast[rows].any()


def test_quantiles_are_averaged_over_their_levels(tmp_path: Path) -> None:
    levels = (0.1, 0.5, 0.7)

    def quantiles(config: Any, output: torch.Tensor) -> Forecast:
        return Forecast(quantiles=torch.stack([output - 1, output, output + 3], -1), levels=levels)

    family = dataclasses.replace(PRODUCT, predict=quantiles)
    chain = Chain(Market(tmp_path, sessions=3, rows=60), family=family)
    scores = scores_of(chain, "w000")
    checkpoint = load(
        chain.walk_forward_task.path(chain.training.items["w000"], "model.safetensors")
    )
    scale = np.array(checkpoint.header.extra["target_scale"])
    # Levels 0 to 0.3 stand for the first, 0.3 to 0.6 for the second, the rest for the third.
    shift = (0.3 * -1 + 0.4 * 3) * scale
    weight = np.abs(checkpoint.tensors["weight"].numpy()) * scale
    low, high = np.nanmin(scores.forecast, axis=0), np.nanmax(scores.forecast, axis=0)
    np.testing.assert_allclose(low, shift - weight, rtol=1e-4)
    np.testing.assert_allclose(high, shift + weight, rtol=1e-4)


def test_a_policy_acts_directly(tmp_path: Path) -> None:
    chain = Chain(
        Market(tmp_path, seed=2, skill=0.3, sessions=3),
        family=POLICY,
        weights=lambda window, weight: weight * 0 + 1,
    )
    scores = scores_of(chain, "w000")
    task = chain.walk_forward_task
    for segment in open_window(task, chain.data, "w000", "bars").test.segments:
        mine = scores.stream == scores.streams.index(segment.stream.id)
        sign = np.sign(segment.raw[:, 0] * segment.raw[:, 1])
        np.testing.assert_array_equal(scores.position[mine][3:198], sign[3:198])
        assert not scores.position[mine][198:].any()
    assert np.isnan(scores.loss).all()


def test_the_scorecard_sums_up_what_was_stitched(chain: Chain) -> None:
    item = chain.walk_forward.items["scorecard"]
    card = item.figures["model"]
    held = Portfolio.load(chain.walk_forward_task.path(item, "model.npz"))
    assert held.sessions == chain.data.sessions[2:]
    assert len(held.ts) == 3 * (200 - CONTEXT + 1)
    assert card["overall"]["net_return_bps"] == pytest.approx(float(held.net.sum()) * 1e4)
    # Two instruments share the capital: the portfolio's P&L is the mean of theirs.
    net = sum(
        float((s.gross[s.decided].astype(float) - s.cost[s.decided]).sum())
        for s in (scores_of(chain, f"w00{i}") for i in range(3))
    )
    assert float(held.net.sum()) == pytest.approx(net / 2, rel=1e-5)
    assert card["overall"]["loss"] < 1
    assert card["overall"]["horizons"]["5"]["information_coefficient"] > 0.1
    assert chain.walk_forward.figures == card["overall"]


def test_a_missing_view_is_said_so(tmp_path: Path) -> None:
    chain = Chain(Market(tmp_path, sessions=3, rows=60))
    chain.walk_forward  # noqa: B018
    task = chain.walk_forward_task
    task.family = dataclasses.replace(PRODUCT, view="book")
    from foxhunt_pipeline.evaluation import walk_forward

    with pytest.raises(ViewUnavailableError, match="no book view"):
        task.build(walk_forward.build)
