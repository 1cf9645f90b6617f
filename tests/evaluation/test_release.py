"""Decisions on releases: skill makes a champion, noise does not, every gate can fail."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import (
    CLASSES,
    DAYS,
    POLICY,
    PRODUCT,
    Chain,
    Linear,
    Market,
    Past,
    Product,
    ProductConfig,
    failed,
    gate,
)
from torch import Tensor

from foxhunt_pipeline.evaluation import release
from foxhunt_pipeline.evaluation.gates import Judgement, better_loss, better_net, not_worse_net
from foxhunt_pipeline.evaluation.scores import Paired
from foxhunt_pipeline.models.contract import Forecast, InputSpec

HONESTY = (
    "newest_session",
    "left_out_sessions",
    "whole",
    "provenance",
    "columns",
    "parameter_count",
    "finite",
    "varies",
    "reload",
)


def edit(key: str, change: Callable[[Any], Any]) -> Callable[[str, dict[str, Any]], None]:
    """Changes production's header and no other."""

    def change_header(window: str, header: dict[str, Any]) -> None:
        if window == "production":
            header[key] = change(header[key])

    return change_header


# Skill ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [PRODUCT, CLASSES, POLICY], ids=["point", "classes", "policy"])
def test_planted_skill_becomes_champion(tmp_path: Path, family: Any) -> None:
    market = Market(tmp_path, seed=4, skill=0.45, sessions=7)
    strong = (lambda w, x: x * 20) if family is POLICY else (lambda w, x: x)
    decision = Chain(market, family=family, weights=strong).release()
    assert decision["decision"] == "champion", decision["reason"]
    assert [g["gate"] for g in decision["gates"]][: len(HONESTY)] == list(HONESTY)
    assert decision["reason"] == ""
    assert decision["figures"]["net_return_bps"] > 0


def test_what_ridge_knows_as_well_is_not_enough(tmp_path: Path) -> None:
    """Better than no forecast, but not than the linear one: a candidate, and it says why."""
    family = dataclasses.replace(PRODUCT, build=Linear)
    market = Market(tmp_path, seed=1, linear=0.4, sessions=7)
    decision = Chain(market, family=family, weights=lambda w, x: x * 0 + 0.3).release()
    assert decision["decision"] == "candidate"
    assert failed(decision) == ["loss_vs_ridge"]
    row = gate(decision, "loss_vs_ridge")
    assert row["number"] > row["bound"] == 0.05
    assert "loss_vs_ridge" in decision["reason"] and "at most 0.05" in decision["reason"]


@pytest.mark.parametrize("family", [PRODUCT, CLASSES, POLICY], ids=["point", "classes", "policy"])
def test_nothing_to_learn_makes_no_champion(tmp_path: Path, family: Any) -> None:
    strong = (lambda w, x: x * 20) if family is POLICY else (lambda w, x: x)
    decisions = [
        Chain(
            Market(tmp_path / str(seed), seed=seed, sessions=4, rows=100, symbols=("AAA",)),
            family=family,
            weights=strong,
        ).release()["decision"]
        for seed in range(5)
    ]
    assert decisions == ["candidate"] * 5


def test_foretelling_what_is_known_makes_no_champion(tmp_path: Path) -> None:
    """The smoothed label holds part of the past. Whoever reads it off classifies far better than
    the class frequencies, on a martingale too, and is no better a forecaster for it."""
    family = dataclasses.replace(CLASSES, build=Past)
    market = Market(tmp_path, seed=2, sessions=7)
    chain = Chain(market, family=family, weights=lambda w, x: x * 0 + 0.3)
    decision = chain.release()
    frequencies = chain.baselines.items["scorecard/bars"].figures["mean"]["overall"]
    for horizon, figures in decision["figures"]["horizons"].items():
        assert figures["mcc"] > 0.15
        assert figures["cross_entropy"] < frequencies["horizons"][horizon]["cross_entropy"]
    assert decision["decision"] == "candidate"
    assert "loss_vs_last_value" in failed(decision)


def martingale(rng: np.random.Generator, sessions: int, rows: int) -> np.ndarray:
    """Returns with clustered volatility and fat tails, without a mean."""
    log_variance = np.zeros(sessions * rows)
    for t in range(1, log_variance.size):
        log_variance[t] = 0.97 * log_variance[t - 1] + 0.15 * rng.normal()
    return 2e-4 * np.exp(log_variance / 2) * rng.standard_t(5, log_variance.size)


def test_rate_of_false_champions_among_policies() -> None:
    """Costless policies on a martingale sit on the null's very boundary against one baseline.

    Against one alone, about 5 % pass, as they must; to pass against all of them is rarer.
    """
    rng = np.random.default_rng(12)
    sessions = np.repeat(np.array(DAYS[:4]), 100)
    judgement = Judgement(samples=200, level=0.05, seed=0, horizon=5)
    against_flat = champions = 0
    draws = 200
    for _ in range(draws):
        r = martingale(rng, 4, 100)
        noise = rng.normal(size=r.size + 4)
        side = np.sign(np.convolve(noise, np.ones(5), mode="valid"))
        mine, ridge = side * r, np.sign(rng.normal(size=r.size)) * r

        def passes(other: np.ndarray, mine: np.ndarray = mine) -> bool:
            none = np.full(mine.size, np.nan)
            paired = Paired(sessions, np.arange(mine.size), none, mine - other)
            return better_net("x", judgement, paired).passed

        flat = passes(np.zeros(r.size))
        against_flat += flat
        champions += flat and passes(r) and passes(ridge)
    assert 0.02 <= against_flat / draws <= 0.09
    assert champions / draws <= 0.05
    assert champions < against_flat


def test_rate_of_false_champions_among_forecasts() -> None:
    """Forecasts fitted to noise lose more than no forecast on average: hardly any passes."""
    rng = np.random.default_rng(3)
    sessions = np.repeat(np.array(DAYS[:4]), 100)
    judgement = Judgement(samples=200, level=0.05, seed=0, horizon=1)
    passed = 0
    for _ in range(200):
        train, test = martingale(rng, 2, 100), martingale(rng, 4, 100)
        x_train, x = rng.normal(size=train.size), rng.normal(size=test.size)
        expected = x * (x_train @ train) / (x_train @ x_train)
        loss = ((test - expected) ** 2 - test**2) / np.mean(train**2)
        paired = Paired(sessions, np.arange(test.size), loss, np.zeros(test.size))
        passed += better_loss("last_value", judgement, paired).passed
    assert passed / 200 <= 0.05


def test_losing_money_beyond_noise_fails_a_forecast() -> None:
    sessions = np.repeat(np.array(DAYS[:2]), 200)
    judgement = Judgement(samples=300, level=0.05, seed=0, horizon=1)
    noise = np.random.default_rng(0).normal(size=400) * 1e-4

    def verdict(mean: float) -> bool:
        paired = Paired(sessions, np.arange(400), np.zeros(400), noise + mean)
        return not_worse_net("flat", judgement, paired).passed

    assert verdict(0.0) and verdict(3e-5)
    assert not verdict(-3e-5)


# Honesty -------------------------------------------------------------------------------------


def refused(decision: dict[str, Any], name: str) -> dict[str, Any]:
    """The failed gate of a decision that it refused; performance was not even looked at."""
    assert decision["decision"] == "refused"
    assert name in failed(decision)
    assert not any("_vs_" in row["gate"] for row in decision["gates"])
    row = gate(decision, name)
    assert name in decision["reason"] and row["detail"] in decision["reason"]
    return row


def small(tmp_path: Path, **arguments: Any) -> Market:
    return Market(tmp_path, sessions=4, rows=60, **arguments)


def test_outputs_that_are_not_finite(tmp_path: Path) -> None:
    family = dataclasses.replace(
        PRODUCT, predict=lambda config, output: Forecast(point=output.log() * 0 + output)
    )
    row = refused(Chain(small(tmp_path), family=family).release(), "finite")
    assert row["number"] > row["bound"] == 0


def test_outputs_that_never_vary(tmp_path: Path) -> None:
    chain = Chain(small(tmp_path), weights=lambda window, weight: weight * 0)
    row = refused(chain.release(), "varies")
    assert row["number"] == 0 < row["bound"]


@pytest.mark.parametrize(
    ("key", "change", "entries"),
    [
        ("columns", lambda c: (c[1], c[0], *c[2:]), 2),
        ("columns", lambda c: c[:-1], 1),
        ("horizons", lambda h: (1, 6), 1),
        ("center", lambda c: (0.5, *c[1:]), 1),
    ],
)
def test_a_checkpoint_that_reads_other_data(
    tmp_path: Path, key: str, change: Callable[[Any], Any], entries: int
) -> None:
    changes = [edit(key, change)]
    if key == "columns" and entries == 1:
        changes += [edit("center", lambda c: c[:-1]), edit("scale", lambda s: s[:-1])]

    def change_all(window: str, header: dict[str, Any]) -> None:
        for one in changes:
            one(window, header)

    row = refused(Chain(small(tmp_path), change=change_all).release(), "columns")
    assert row["number"] >= entries and row["bound"] == 0
    assert key.rstrip("s") in row["detail"]


@pytest.mark.parametrize("cut", [0, 8, 100, -1])
def test_a_truncated_file(tmp_path: Path, cut: int) -> None:
    chain = Chain(small(tmp_path))
    task = chain.release_task()
    path = task.path(chain.training.items["production"], "model.safetensors")
    path.write_bytes(path.read_bytes()[:cut])
    row = refused(chain.release(), "whole")
    assert row["number"] == path.stat().st_size


def test_a_file_of_weights_that_are_not_finite(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    chain = Chain(small(tmp_path))
    task = chain.release_task()
    path = task.path(chain.training.items["production"], "model.safetensors")
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    save_file({"weight": torch.tensor([1.0, torch.nan])}, path, metadata)
    assert "NaN" in refused(chain.release(), "whole")["detail"]


def test_a_header_that_miscounts(tmp_path: Path) -> None:
    chain = Chain(small(tmp_path), change=edit("parameter_count", lambda n: n - 1))
    row = refused(chain.release(), "parameter_count")
    assert (row["number"], row["bound"]) == (2, 1)


def test_tensors_of_another_module(tmp_path: Path) -> None:
    class Renamed(Product):
        def __init__(self, config: ProductConfig, spec: InputSpec) -> None:
            super().__init__(config, spec)
            self.other = torch.nn.Parameter(torch.zeros(1))

    chain = Chain(small(tmp_path))
    task = chain.release_task()
    assert task.inputs
    chain.family = dataclasses.replace(PRODUCT, build=Renamed)
    assert "other" in refused(chain.release(), "rebuild")["detail"]


def test_a_model_that_forgets_part_of_itself(tmp_path: Path) -> None:
    count = itertools.count()

    class Forgetful(Product):
        def __init__(self, config: ProductConfig, spec: InputSpec) -> None:
            super().__init__(config, spec)
            self.offset = float(next(count))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.offset

    family = dataclasses.replace(PRODUCT, build=Forgetful)
    row = refused(Chain(small(tmp_path), family=family).release(), "reload")
    assert row["number"] == 1 and row["bound"] == 0


@pytest.mark.parametrize(
    ("key", "change", "named"),
    [
        ("code_version", lambda v: "", "code version"),
        ("data_versions", lambda v: {}, "data version"),
        ("data_versions", lambda v: {"production": "0" * 64}, "data version"),
        ("libraries", lambda v: {**v, "torch": ""}, "version of torch"),
        ("extra", lambda v: {**v, "train_sessions": ["2020-01-01"]}, "training sessions"),
    ],
)
def test_incomplete_provenance(
    tmp_path: Path, key: str, change: Callable[[Any], Any], named: str
) -> None:
    row = refused(Chain(small(tmp_path), change=edit(key, change)).release(), "provenance")
    assert row["number"] == 1
    assert named in row["detail"]


def test_a_newest_session_that_is_missing(tmp_path: Path) -> None:
    market = small(tmp_path, left_out={"2024-03-08": "trades: truncated"})
    row = refused(Chain(market).release(), "newest_session")
    assert row["number"] == 1
    assert "2024-03-08: trades: truncated" in row["detail"]


def test_more_gaps_than_allowed(tmp_path: Path) -> None:
    gaps = {"2024-03-06x": "crossed", "2024-03-06y": "corrupt"}
    decision = Chain(small(tmp_path, left_out=gaps)).release()
    row = refused(decision, "left_out_sessions")
    assert (row["number"], row["bound"]) == (2, 1)
    one = Chain(small(tmp_path / "one", left_out=dict(list(gaps.items())[:1]))).release()
    assert gate(one, "left_out_sessions")["passed"]
    long_ago = {"2024-02-01": "crossed", "2024-02-02": "corrupt", "2024-02-05": "corrupt"}
    old = Chain(small(tmp_path / "old", left_out=long_ago)).release()
    assert gate(old, "left_out_sessions")["passed"]


# Champions -----------------------------------------------------------------------------------


def checkpoint_of(chain: Chain) -> Path:
    return chain.release_task().path(chain.training.items["production"], "model.safetensors")


def record_of(chain: Chain) -> Path:
    return chain.release_task().path(chain.walk_forward.items["scorecard"], "model.npz")


@pytest.fixture(scope="module")
def skilled(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Ten sessions with skill in them."""
    folder = tmp_path_factory.mktemp("skilled")
    return Chain(Market(folder, seed=4, skill=0.45, sessions=10, rows=150))


def earlier(tmp_path: Path, share: float, sessions: int = 6) -> Chain:
    """The champion of the first sessions of the same market, ``share`` of it being skill."""
    market = Market(tmp_path, seed=4, skill=0.45, sessions=sessions, rows=150)
    return Chain(market, weights=lambda window, weight: weight * share)


def test_the_champion_itself_stays(skilled: Chain) -> None:
    decision = skilled.release(champion=checkpoint_of(skilled))
    assert decision["decision"] == "champion"
    assert "is the champion" in gate(decision, "champion")["detail"]


def test_a_worse_champion_is_replaced_on_rows_it_never_saw(skilled: Chain, tmp_path: Path) -> None:
    decision = skilled.release(champion=checkpoint_of(earlier(tmp_path, -0.5)))
    assert decision["decision"] == "champion", decision["reason"]
    # Trained to the sixth session, it is scored again on the four after it.
    assert f"over {4 * (150 - 3 - 5)} rows" in gate(decision, "loss_vs_champion")["detail"]


def test_a_champion_as_good_stays(skilled: Chain, tmp_path: Path) -> None:
    decision = skilled.release(champion=checkpoint_of(earlier(tmp_path, 1.0)))
    assert decision["decision"] == "candidate"
    assert failed(decision) == ["loss_vs_champion"]


def test_without_unseen_rows_the_champion_stays(skilled: Chain, tmp_path: Path) -> None:
    decision = skilled.release(champion=checkpoint_of(earlier(tmp_path, -0.5, sessions=10)))
    assert decision["decision"] == "candidate"
    row = gate(decision, "champion")
    assert (row["number"], row["bound"]) == (0, 1)
    assert "every test session" in row["detail"]


def test_its_own_walk_forward_stands_for_rows_it_was_trained_on(
    skilled: Chain, tmp_path: Path
) -> None:
    worse = earlier(tmp_path, -0.5, sessions=10)
    decision = skilled.release(champion=checkpoint_of(worse), scores=record_of(worse))
    assert decision["decision"] == "champion", decision["reason"]
    assert f"over {8 * (150 - 3 - 5)} rows" in gate(decision, "loss_vs_champion")["detail"]


def test_walk_forward_and_rescored_rows_are_joined(skilled: Chain, tmp_path: Path) -> None:
    worse = earlier(tmp_path, -0.5)
    decision = skilled.release(champion=checkpoint_of(worse), scores=record_of(worse))
    assert f"over {8 * (150 - 3 - 5)} rows" in gate(decision, "loss_vs_champion")["detail"]


def test_a_champion_that_present_code_cannot_rebuild(skilled: Chain, tmp_path: Path) -> None:
    class Larger(Product):
        def __init__(self, config: ProductConfig, spec: InputSpec) -> None:
            super().__init__(config, spec)
            self.other = torch.nn.Parameter(torch.zeros(1))

    old = earlier(tmp_path, -0.5)
    old.family = dataclasses.replace(PRODUCT, build=Larger)
    path, record = checkpoint_of(old), record_of(old)
    decision = skilled.release(champion=path)
    assert decision["decision"] == "candidate"
    assert "cannot be scored again" in gate(decision, "champion")["detail"]
    decision = skilled.release(champion=path, scores=record)
    assert decision["decision"] == "champion", decision["reason"]


def test_policies_are_compared_by_their_net_pnl(tmp_path: Path) -> None:
    def policy(folder: str, sessions: int, sign: int) -> Chain:
        market = Market(tmp_path / folder, seed=4, skill=0.45, sessions=sessions)
        return Chain(market, family=POLICY, weights=lambda w, x: x * 20 * sign)

    present = policy("new", 8, 1)
    worse = present.release(champion=checkpoint_of(policy("worse", 5, -1)))
    assert worse["decision"] == "champion", worse["reason"]
    same = present.release(champion=checkpoint_of(policy("same", 5, 1)))
    assert failed(same) == ["net_vs_champion"]


def test_a_decision_is_reused_until_the_champion_changes(skilled: Chain, tmp_path: Path) -> None:
    task = skilled.release_task()
    task.build(release.build)
    artifact = task.build(release.build)
    assert task.reused == ["decision"]
    assert artifact.items["checkpoint"].files == skilled.training.items["production"].files
    assert artifact.figures["decision"] == "champion"
    task.champion = checkpoint_of(earlier(tmp_path, 0.99))
    assert task.build(release.build).figures["decision"] == "candidate"
    assert task.computed == ["decision"]
