"""The batched environment against a plain simulation of one episode at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.environment import MarketEnvironment, World, utility
from foxhunt_pipeline.execution.rollout import follow
from foxhunt_pipeline.models.contract import Policy
from support.markets import PRICE, prices, reverting, reverting_split, segment, split

CONTEXT = 4
COSTS = Costs(fee_bps=0.3, slippage_bps=0.2, half_spread_bps=0.5)
LEVELS = ActionSpace().exposures


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ragged_market(seed: int, *, has_quotes: bool) -> list:
    """Sessions of different lengths, with look-back behind the split's start, a spread that
    moves, and rows that cannot be traded on one side or on both."""
    rng = np.random.default_rng(seed)
    segments = []
    for n, start in ((40, 0), (25, 10), (3, 0), (60, 2)):
        px = prices(rng.normal(0, 5, n))
        half = rng.integers(0, PRICE // 5000, n)
        px[:, 2] += half * (px[:, 2] > 0)
        px[:, 3] -= half * (px[:, 3] > 0)
        px[rng.random(n) < 0.15, 2] = -1
        px[rng.random(n) < 0.15, 3] = -1
        x = rng.normal(size=(n, 3))
        segments.append(segment(px, x, start, has_quotes=has_quotes))
    return segments


class Episode:
    """One episode by hand: whole prices, cash and a position."""

    def __init__(self, seg, row: int) -> None:
        self.px, self.row, self.held = seg.px.tolist(), row, 0.0
        decided = range(max(seg.start, CONTEXT - 1), seg.stop)
        self.lot = self.px[decided[0]][4]
        self.close = max(t for t in decided if self.px[t][2] > 0 and self.px[t][3] > 0)
        self.rate = (0.5 if seg.stream.has_quotes else 1.0) * 1e-4

    def step(self, target: float) -> tuple[float, bool]:
        """(P&L in basis points, whether the segment has ended)."""
        _, _, buy, sell, mark, after = self.px[self.row]
        ended = self.row >= self.close
        change = (0.0 if ended else target) - self.held
        price = buy if change > 0 else sell
        pnl = self.held * ((after if after > 0 else mark) - mark)
        if change and price > 0:
            pnl += change * (after - price) - abs(change) * price * self.rate
            self.held += change
        self.row += 1
        return pnl / self.lot * 1e4, ended


@pytest.mark.parametrize("has_quotes", [False, True])
def test_equals_one_episode_at_a_time(has_quotes):
    segments = ragged_market(3, has_quotes=has_quotes)
    data = split(segments)
    world = World.of(data, CONTEXT, COSTS)
    places = {}
    for lane in world.lanes:
        number, local = data.locate(lane.rows)
        for i, (s, t) in enumerate(zip(number, local, strict=True)):
            places[lane.first + i] = (segments[s], int(t))
    assert len(places) == world.rows == 37 + 15 + 0 + 57

    env = MarketEnvironment(world, n_envs=50, episode_rows=9, risk_aversion=0.1, seed=1)
    rng = np.random.default_rng(2)
    observation = env.reset()
    episodes = [Episode(*places[row]) for row in observation[0].tolist()]
    ages = [0] * env.n_envs
    seen = {"terminated": 0, "truncated": 0}
    for _ in range(120):
        x, position = env.inputs(observation)
        for i, row in enumerate(observation[0].tolist()):
            seg, t = places[row]
            assert t == episodes[i].row
            np.testing.assert_array_equal(x[i], seg.raw[t - CONTEXT + 1 : t + 1])
            assert position[i] == episodes[i].held
        actions = rng.integers(0, 5, env.n_envs)
        step = env.step(torch.from_numpy(actions))
        for i, action in enumerate(actions):
            episode = episodes[i]
            pnl, ended = episode.step(LEVELS[action])
            ages[i] += 1
            assert step.reward[i].item() == pytest.approx(pnl - 0.05 * pnl**2, abs=2e-3)
            assert step.terminated[i].item() == ended
            assert step.truncated[i].item() == (ages[i] == 9 and not ended)
            final_row, final_position = (part[i].item() for part in step.final)
            assert final_position == episode.held
            if ended:
                assert final_position == 0
                seen["terminated"] += 1
            else:
                # what an action led to is the next row of its own session, reset or not
                assert places[final_row] == (places[observation[0][i].item()][0], episode.row)
            if ended or ages[i] == 9:
                seen["truncated"] += not ended
                row, held = (part[i].item() for part in step.observation)
                assert held == 0
                episodes[i], ages[i] = Episode(*places[row]), 0
                assert episodes[i].row < episodes[i].close
        observation = step.observation
    assert min(seen.values()) > 50


def test_starts_cover_every_row_where_a_position_may_be_held():
    world = World.of(reverting_split(*reverting(3, 30, strength=1, noise=1, seed=0)), 5, COSTS)
    env = MarketEnvironment(world, n_envs=2000, episode_rows=5)
    assert sorted(set(env.reset()[0].tolist())) == world.starts().tolist()
    assert len(world.starts()) == 3 * (30 - 4 - 2)


class Momentum(nn.Module):
    """Follows the sign of the newest feature, more timidly when it must change sides."""

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> Policy:
        newest = x[:, -1, 0]
        wanted = torch.where(newest * position < 0, 0.0, newest.sign())
        levels = torch.tensor(LEVELS)
        return Policy(-(levels - wanted[:, None]).abs(), torch.zeros_like(position))


@pytest.mark.parametrize("has_quotes", [False, True])
def test_following_equals_walking_by_hand(has_quotes):
    segments = ragged_market(4, has_quotes=has_quotes)
    data = split(segments)
    walked = follow(Momentum(), World.of(data, CONTEXT, COSTS))
    np.testing.assert_array_equal(walked.rows, data.rows(CONTEXT, labelled=False))
    number, local = data.locate(walked.rows)
    for s, seg in enumerate(segments):
        mine = number == s
        if not mine.any():
            continue
        episode = Episode(seg, int(local[mine][0]))
        for pnl, position, t in zip(
            walked.outcome.pnl[mine], walked.outcome.position[mine], local[mine], strict=True
        ):
            newest = seg.raw[t, 0]
            target = 0.0 if newest * episode.held < 0 else float(np.sign(newest))
            expected, _ = episode.step(target)
            assert pnl * 1e4 == pytest.approx(expected, abs=1e-9)
            assert position == episode.held
        assert walked.outcome.position[mine][-1] == 0


def test_following_an_empty_split_is_empty():
    world = World.of(split([segment(prices(np.zeros(3)), np.zeros((3, 1)))]), CONTEXT, COSTS)
    walked = follow(Momentum(), world)
    assert len(walked.rows) == len(walked.targets) == len(walked.outcome.pnl) == 0


def test_utility_is_quadratic_in_basis_points():
    assert utility(np.array([3e-4, -3e-4]), 0.5).tolist() == pytest.approx([0.75, -5.25])
