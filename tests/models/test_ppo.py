"""The update rule of PPO against slow and closed forms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foxhunt_pipeline.models.contract import InputSpec
from foxhunt_pipeline.models.learning import Observation, Step
from foxhunt_pipeline.models.ppo import (
    PPO,
    ActorCritic,
    PPOConfig,
    advantages,
    policy_loss,
    value_loss,
)
from support.cartpole import CartPole, dynamics

SPEC = InputSpec("bars", ("a", "b"), (1,))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Clocks:
    """Environments that count: number i ends every ``i + 2`` steps, the even ones terminated and
    the odd ones truncated. The observation is (count, number); the reward depends on both."""

    def __init__(self, n_envs: int) -> None:
        self.number = torch.arange(n_envs)
        self.reset()

    def reset(self) -> Observation:
        self.count = torch.zeros_like(self.number)
        return self.count, self.number

    def step(self, action: Tensor) -> Step:
        reward = (self.count - 0.7 * self.number + action).float()
        final = self.count + 1
        done = final == self.number + 2
        even = self.number % 2 == 0
        self.count = final * ~done
        return Step(
            reward, done & even, done & ~even, (final, self.number), (self.count, self.number)
        )

    def inputs(self, observation: Observation) -> tuple[Tensor, Tensor]:
        x = torch.stack(observation, dim=1).float().unsqueeze(1)
        return x, torch.zeros(len(x))


def learner(environment, seed: int = 0, **settings) -> PPO:
    config = PPOConfig(context=1, hidden=16, **settings)
    torch.manual_seed(seed)
    module = ActorCritic(config, SPEC, 3)
    return PPO(config, module, environment, torch.Generator().manual_seed(seed))


def test_truncation_has_a_future_and_termination_has_none():
    """Against a walk along each episode that asks the critic about the final observation."""
    agent = learner(Clocks(5), rollout=23, gamma=0.9, gae_lambda=0.8)
    agent.update()  # so that the critic is no constant and the reward scale is set
    scale = agent.module.reward_scale

    def value(count: int, number: int) -> float:
        x = torch.tensor([[[float(count), float(number)]]])
        with torch.no_grad():
            return float(agent.module(x, torch.zeros(1)).value / scale)

    got, _ = agent.gather()
    counts, numbers = got.observation
    ended = {"terminated": 0, "truncated": 0}
    for i in range(5):
        following = 0.0
        for t in range(22, -1, -1):
            count, number = int(counts[t, i]), int(numbers[t, i])
            reward = float((count - 0.7 * number + got.action[t, i]) / scale)
            done = count + 1 == number + 2
            future = 0.0 if done and number % 2 == 0 else value(count + 1, number)
            if done:
                following = 0.0
                ended["terminated" if number % 2 == 0 else "truncated"] += 1
            delta = reward + 0.9 * future - value(count, number)
            following = delta + 0.9 * 0.8 * following
            assert float(got.advantage[t, i]) == pytest.approx(following, abs=1e-4)
    assert min(ended.values()) > 5


def test_no_transition_crosses_a_reset():
    """What is stored is what was acted on: a count never follows one of another episode."""
    agent = learner(Clocks(5), rollout=40)
    got, _ = agent.gather()
    counts, numbers = got.observation
    limit = numbers[0] + 2
    np.testing.assert_array_equal(counts, torch.arange(40)[:, None] % limit)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_advantages_equal_the_slow_sum(steps, envs, gamma, gae_lambda, seed):
    """Definition (16) of Schulman et al. 2016: the discounted sum of later deltas, cut at ends."""
    rng = np.random.default_rng(seed)
    reward, value, following = rng.normal(size=(3, steps, envs))
    done = (rng.random((steps, envs)) < 0.3).astype(float)
    got = advantages(
        *(torch.from_numpy(a) for a in (reward, value, following, done)), gamma, gae_lambda
    )
    for i in range(envs):
        for t in range(steps):
            total = 0.0
            for k in range(t, steps):
                delta = reward[k, i] + gamma * following[k, i] - value[k, i]
                total += (gamma * gae_lambda) ** (k - t) * delta
                if done[k, i]:
                    break
            assert got[t, i].item() == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # good and already likelier: clipped, no gradient
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
        (0.5, -2.0, 1.6, 0.0),  # bad and already unlikelier: clipped, no gradient
    ],
)
def test_clipped_surrogate(ratio, advantage, loss, gradient):
    """The gradient is with respect to the log ratio."""
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    got = policy_loss(log_ratio, torch.tensor([advantage], dtype=torch.float64), 0.2)
    got.backward()
    assert got.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("value", "old", "returns", "clip", "loss"),
    [
        (1.0, 0.0, 3.0, 0.0, 2.0),
        (1.0, 0.0, 3.0, 0.2, 0.5 * 2.8**2),  # the clipped value errs more
        (1.0, 0.0, 0.0, 0.2, 0.5),  # the value itself errs more
        (0.1, 0.0, 3.0, 0.2, 0.5 * 2.9**2),
    ],
)
def test_clipped_value_loss(value, old, returns, clip, loss):
    tensors = (torch.tensor([number]) for number in (value, old, returns))
    assert value_loss(*tensors, clip).item() == pytest.approx(loss)


def test_gradients_are_clipped_and_the_rate_falls_to_zero():
    agent = learner(Clocks(4), rollout=8, total_steps=96, learning_rate=1e-2)
    rates = [agent.update()["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([1e-2, 1e-2 * 2 / 3, 1e-2 / 3, 0])
    norm = sum(p.grad.square().sum() for p in agent.module.parameters()).sqrt()
    assert norm <= 0.5 + 1e-6
    assert (agent.env_steps, agent.gradient_steps) == (128, 4 * 4 * 2)


def test_an_update_stops_on_kl():
    eager = learner(Clocks(4), rollout=64, learning_rate=1e-2)
    wary = learner(Clocks(4), rollout=64, learning_rate=1e-2, target_kl=1e-5)
    eager.update()
    assert wary.update()["kl"] > 1e-5
    assert wary.gradient_steps < eager.gradient_steps == 8


def test_values_are_in_reward_units():
    """Rewards a thousand times greater: the same learning, and values as much greater."""

    class Rich(Clocks):
        def step(self, action: Tensor) -> Step:
            step = super().step(action)
            return Step(step.reward * 1024, *list(vars(step).values())[1:])

    poor, rich = learner(Clocks(3), seed=3), learner(Rich(3), seed=3)
    for agent in (poor, rich):
        agent.update()
        agent.update()
    x = torch.randn(7, 1, 2)
    ours, theirs = (agent.module(x, torch.zeros(7)) for agent in (poor, rich))
    torch.testing.assert_close(theirs.logits, ours.logits)
    torch.testing.assert_close(theirs.value, ours.value * 1024)


def test_the_seed_decides():
    def weights(seed: int) -> Tensor:
        agent = learner(Clocks(4), seed=seed)
        agent.update()
        return torch.cat([p.detach().flatten() for p in agent.module.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_builds_on_any_device():
    config = PPOConfig(context=6, hidden=8)
    with torch.device("meta"):
        module = ActorCritic(config, SPEC, 5)
    policy = module(torch.empty(3, 6, 2, device="meta"), torch.empty(3, device="meta"))
    assert {t.device.type for t in [*module.state_dict().values(), policy.logits]} == {"meta"}
    assert policy.logits.shape == (3, 5)
    assert policy.value.shape == (3,)


def test_first_policy_is_nearly_uniform_and_layers_orthogonal():
    module = ActorCritic(PPOConfig(context=6, hidden=8), SPEC, 5)
    probability = module(torch.randn(64, 6, 2), torch.zeros(64)).logits.softmax(-1)
    assert (probability - 0.2).abs().max() < 0.02
    weight = module.actor[0].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8))


def test_the_pole_falls_as_gymnasiums():
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    ours, theirs = torch.from_numpy(env.reset(seed=5)[0]).double(), None
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = int(rng.integers(2))
        theirs, _, terminated, _, _ = env.step(action)
        ours = dynamics(ours[None], torch.tensor([action]))[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        fallen = abs(ours[0]) > 2.4 or abs(ours[2]) > 12 * np.pi / 180
        assert bool(fallen) == terminated
        if terminated:
            break
    env.close()


@pytest.mark.parametrize("seed", [0, 1])
def test_balances_the_pole(seed):
    """To at least 450 of 500 steps, on average over 20 fresh poles, within 80 000 steps."""
    torch.manual_seed(seed)
    config = PPOConfig(
        context=1,
        n_envs=16,
        rollout=64,
        epochs=8,
        minibatches=4,
        gamma=0.98,
        gae_lambda=0.9,
        entropy_weight=0.0,
        total_steps=80_000,
    )
    module = ActorCritic(config, InputSpec("bars", tuple("abcd"), (1,)), 2)
    agent = PPO(config, module, CartPole(16, seed), torch.Generator().manual_seed(seed))
    while agent.env_steps < config.total_steps:
        agent.update()
    poles = CartPole(20, seed=99)
    observation, up, steps = poles.reset(), torch.ones(20, dtype=torch.bool), torch.zeros(20)
    while up.any():
        with torch.no_grad():
            action = module(*poles.inputs(observation)).logits.argmax(-1)
        step = poles.step(action)
        steps += up
        up &= ~(step.terminated | step.truncated)
        observation = step.observation
    assert steps.mean() >= 450
