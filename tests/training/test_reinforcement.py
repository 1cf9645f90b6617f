"""Training of policies: what they learn, what they leave behind, and that it comes out again."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from foxhunt_pipeline.checkpoints.format import load
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.datasets.stage import build as build_dataset
from foxhunt_pipeline.errors import ConfigError, TrainingError
from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.environment import MarketEnvironment, World
from foxhunt_pipeline.execution.rollout import follow
from foxhunt_pipeline.models.contract import InputSpec
from foxhunt_pipeline.models.ppo import FAMILY, PPO, PPOConfig
from foxhunt_pipeline.training.rebuild import module_from
from foxhunt_pipeline.training.reinforcement import build, fit
from support.dataset_inputs import Sessions
from support.markets import reverting, reverting_split
from support.task import FolderTask

TESTS = Path(__file__).resolve().parent.parent
LEVELS = np.array(ActionSpace().exposures)
SETTINGS = {"context": 3, "hidden": 8, "n_envs": 8, "episode_rows": 20, "total_steps": 1000}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def training_task(folder: Path, **settings: object) -> FolderTask:
    """A training task over four made-up sessions: windows w000, w001 and production."""
    sessions = Sessions(folder)
    for day in range(1, 5):
        sessions.add(day)
    config = {"models": {"ppo": {**SETTINGS, **settings}}, "training": {"device": "cpu"}}
    dataset = sessions.task(**config).build(build_dataset)
    return FolderTask(
        folder,
        "ppo/training",
        settings=Config.model_validate(config),
        inputs={"dataset": dataset},
        family=FAMILY,
        model="ppo",
    )


def test_every_window_gives_a_checkpoint_that_rebuilds(tmp_path):
    task = training_task(tmp_path)
    state = torch.random.get_rng_state()
    artifact = task.build(build)
    assert torch.equal(state, torch.random.get_rng_state())
    assert list(artifact.items) == ["w000", "w001", "production"]
    assert artifact.figures["windows"] == 3
    for name, item in artifact.items.items():
        checkpoint = load(task.path(item, "model.safetensors"))
        header = checkpoint.header
        assert (header.family, header.view, header.device) == ("ppo", "bars", "cpu")
        assert header.extra["window"] == name
        assert header.config == {**vars(PPOConfig()), **SETTINGS}
        module = module_from(checkpoint, FAMILY)
        policy = module(torch.zeros(2, 3, len(header.columns)), torch.zeros(2))
        assert policy.logits.shape == (2, 5)
        figures = item.figures
        assert figures["env_steps"] == 1024 == figures["curve"][-1]["env_steps"]
        assert figures["steps"] == 4 * 4 * 2 == figures["curve"][-1]["gradient_steps"]
        assert figures["parameters"] == sum(p.numel() for p in module.parameters())
        best = max(figures["curve"], key=lambda point: point["validation"])
        assert figures["best_step"] == best["env_steps"]
    updates = [figures for message, figures in task.messages if message.startswith("ppo w000")]
    assert len(updates) == 4
    assert updates[0].keys() >= {"loss", "entropy", "kl", "reward", "steps_per_second"}


def test_the_best_policy_on_the_validation_rows_is_kept():
    """The weights that come back score what the curve says its best did."""
    world = mean_reverting(sessions=4, seed=3)
    config = PPOConfig(context=1, total_steps=20_480)
    module = FAMILY.build(config, InputSpec("bars", ("s",), (1,)), 5)
    fitted = fit(FAMILY, config, module, world, world, seed=1)
    scores = {point["env_steps"]: point["validation"] for point in fitted.curve}
    assert len(scores) == 10
    assert scores[fitted.best_step] == max(scores.values()) > min(scores.values())
    assert follow(module, world).outcome.pnl.mean() * 1e4 == pytest.approx(max(scores.values()))


SCRIPT = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from training.test_reinforcement import training_task
from foxhunt_pipeline.training.reinforcement import build
task = training_task(Path(sys.argv[2]))
for item in task.build(build).items.values():
    print(hashlib.sha256(task.path(item, "model.safetensors").read_bytes()).hexdigest())
"""


def test_two_processes_give_the_same_bytes(tmp_path):
    """And a second build in the same process computes nothing."""
    command = [sys.executable, "-c", SCRIPT, str(TESTS), str(tmp_path / "a")]
    theirs = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    task = training_task(tmp_path / "b")
    torch.manual_seed(12345)
    first = task.build(build)
    files = [task.path(item, "model.safetensors") for item in first.items.values()]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in files] == theirs
    assert len(set(theirs)) == 3
    assert task.build(build).data_version == first.data_version
    assert task.computed == []


def test_wrong_settings_and_windows_without_rows_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"models\.ppo\.horizon .*Allowed: .*total_steps"):
        training_task(tmp_path / "a", horizon=3).build(build)
    with pytest.raises(ConfigError, match=r"models\.ppo\.n_envs = 0"):
        training_task(tmp_path / "b", n_envs=0).build(build)
    with pytest.raises(TrainingError, match=r"ppo w000: no training row .*500 rows of look-back"):
        training_task(tmp_path / "c", context=500).build(build)


def test_a_figure_that_is_not_finite_is_named():
    world = mean_reverting(sessions=2, seed=3)
    world.features[::7] = float("nan")
    config = PPOConfig(context=1, total_steps=4096)
    module = FAMILY.build(config, InputSpec("bars", ("s",), (1,)), 5)
    with pytest.raises(TrainingError, match=r"policy: not finite after step 2048: loss = nan"):
        fit(FAMILY, config, module, world, world, seed=1)


COST = 4.0
"""Basis points of a lot traded."""
STRENGTH, NOISE = 2.0, 2.0
"""Basis points a row."""


def mean_reverting(
    sessions: int, seed: int, strength: float = STRENGTH, cost: float = COST
) -> World:
    drawn = reverting(sessions, 500, strength=strength, noise=NOISE, seed=seed)
    return World.of(reverting_split(*drawn), 1, Costs(cost, 0, 0))


martingale = partial(mean_reverting, strength=0.0)


def trained(world: World, seed: int, **settings: object) -> torch.nn.Module:
    config = replace(PPOConfig(context=1, total_steps=120_000, learning_rate=2e-3), **settings)
    torch.manual_seed(seed)
    module = FAMILY.build(config, InputSpec("bars", ("s",), (1,)), 5)
    environment = MarketEnvironment(
        world, config.n_envs, config.episode_rows, config.risk_aversion, seed=seed
    )
    agent = PPO(config, module, environment, torch.Generator().manual_seed(seed))
    while agent.env_steps < config.total_steps:
        agent.update()
    return module


def optimum(signals: list[np.ndarray], moves: list[np.ndarray]) -> float:
    """P&L a row of the optimal policy, by dynamic programming on a grid of the signal: value
    iteration over (signal, exposure) with the signal's own law, walked through the sessions."""
    grid = np.linspace(-4, 4, 161)
    law = np.exp(-0.5 * (grid - 0.9 * grid[:, None]) ** 2 / (1 - 0.9**2))
    law /= law.sum(axis=1, keepdims=True)
    trade = COST * np.abs(LEVELS - LEVELS[:, None])
    now = STRENGTH * grid[:, None, None] * LEVELS - trade  # (signal, held, target)
    value = np.zeros((len(grid), len(LEVELS)))
    for _ in range(500):
        total = now + (law @ value)[:, None, :]
        value = total.max(axis=2)
        value -= value.mean()
    return walk(signals, moves, lambda s, held: total[np.abs(grid - s).argmin(), held].argmax())


def walk(signals, moves, choose) -> float:
    """Mean P&L a row of a rule (signal, level held) -> level, flat on the last tradable row."""
    total, flat = 0.0, 2
    for s, m in zip(signals, moves, strict=True):
        held = flat
        for t in range(len(s) - 1):
            target = choose(s[t], held) if t < len(s) - 2 else flat
            total += LEVELS[target] * m[t] - COST * abs(LEVELS[target] - LEVELS[held])
            held = target
    return total / sum(map(len, signals))


@pytest.mark.parametrize("seed", [0, 1])
def test_reaches_the_optimum_of_a_mean_reverting_market(seed):
    """At least 90 % of dynamic programming on fresh sessions, where a rule that only follows
    the sign of the signal pays most of it away."""
    signals, moves = reverting(40, 500, strength=STRENGTH, noise=NOISE, seed=2)
    best = optimum(signals, moves)
    assert walk(signals, moves, lambda s, held: 4 if s > 0 else 0) < 0.6 * best
    module = trained(mean_reverting(sessions=100, seed=1), seed)
    achieved = follow(module, mean_reverting(sessions=40, seed=2)).outcome.pnl.mean() * 1e4
    assert 0.9 * best <= achieved <= 1.02 * best


@pytest.mark.parametrize("seed", [0, 1])
def test_stops_trading_on_a_martingale(seed):
    """Entering and the forced close are all it may trade: 2 lots a session of 500 rows."""
    module = trained(martingale(sessions=100, seed=1), seed, total_steps=60_000)
    walked = follow(module, martingale(sessions=40, seed=2))
    assert walked.outcome.turnover.mean() <= 2.5 / 500


@pytest.mark.parametrize("seed", [0, 1])
def test_is_flat_on_a_martingale_when_risk_is_penalised(seed):
    world = martingale(sessions=100, seed=1, cost=1.0)
    module = trained(world, seed, risk_aversion=0.5, episode_rows=64)
    walked = follow(module, martingale(sessions=40, seed=2, cost=1.0))
    assert np.abs(walked.outcome.position).mean() < 0.02
