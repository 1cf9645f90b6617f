"""PPO: proximal policy optimisation with a clipped objective.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), with
generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438) and the details of
cleanrl's ``ppo.py``: orthogonal initialisation, Adam with epsilon 1e-5 and a rate annealed to 0,
advantages normalised per minibatch, clipped value loss, gradient clipping, stop on KL.

What it is not: there is no recurrent state. The look-back is flattened and read by two MLPs of
their own, an actor and a critic. Rewards are divided by their root mean square over the first
rollout, so that clipping of values means the same for a pole and for a market; the module
remembers that scale and gives values in reward units.

Shapes: x (batch, time, feature) scaled, position (batch,); logits (batch, action),
value (batch,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from foxhunt_pipeline.models.contract import InputSpec, Policy, PolicyFamily
from foxhunt_pipeline.models.learning import Environment, Observation

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class PPOConfig:
    """Defaults are cleanrl's where no reason is given."""

    context: Count = 32
    """Rows of look-back."""
    hidden: Count = 64
    """Width of the two hidden layers of actor and critic."""
    n_envs: Count = 64
    """Episodes side by side."""
    episode_rows: Count = 256
    """Rows after which an episode is truncated."""
    risk_aversion: NonNegative = 0.0
    """Of the reward's quadratic utility, per basis point of P&L; 0 rewards P&L alone."""
    total_steps: Count = 1_000_000
    """Environment steps, of all environments together."""
    rollout: Count = 32
    """Steps of each environment between updates."""
    epochs: Count = 4
    """Passes over a rollout."""
    minibatches: Count = 2
    """Parts of a pass, one gradient step each."""
    gamma: Share = 0.95
    """Discount of a row: a horizon of 20 rows, as long as a signal of bars lasts."""
    gae_lambda: Share = 0.9
    clip: Positive = 0.2
    """Of the probability ratio."""
    value_clip: NonNegative = 0.0
    """Of the change of value, in units of the reward scale; 0 does not clip. Clipping slows the
    critic (Andrychowicz et al. 2021, arXiv 2006.05990) and is off."""
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 0.01
    max_grad_norm: Positive = 0.5
    target_kl: NonNegative = 0.0
    """An update stops after a pass with more KL than this; 0 never stops."""
    learning_rate: Positive = 1e-3
    """At the start, for batches of a thousand; it falls linearly to 0 at ``total_steps``."""


class MLP(nn.Sequential):
    """(batch, n_in) -> (batch, n_out): two tanh layers, orthogonal weights, zero biases."""

    def __init__(self, n_in: int, hidden: int, n_out: int, last_gain: float) -> None:
        first, second = nn.Linear(n_in, hidden), nn.Linear(hidden, hidden)
        last = nn.Linear(hidden, n_out)
        for layer, gain in ((first, math.sqrt(2)), (second, math.sqrt(2)), (last, last_gain)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        super().__init__(first, nn.Tanh(), second, nn.Tanh(), last)


class ActorCritic(nn.Module):
    """(x, position) -> Policy."""

    reward_scale: Tensor

    def __init__(self, config: PPOConfig, spec: InputSpec, n_actions: int) -> None:
        super().__init__()
        n_in = config.context * spec.n_features + 1
        self.actor = MLP(n_in, config.hidden, n_actions, last_gain=0.01)
        self.critic = MLP(n_in, config.hidden, 1, last_gain=1.0)
        self.register_buffer("reward_scale", torch.ones(()))

    def forward(self, x: Tensor, position: Tensor) -> Policy:
        state = torch.cat([x.flatten(1), position.unsqueeze(1)], dim=1)  # (batch, n_in)
        value = self.critic(state).squeeze(1) * self.reward_scale  # (batch,)
        return Policy(logits=self.actor(state), value=value)


def advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    done: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates, (step, environment) like every argument.

    ``next_value`` is the value of what each action led to: 0 where the episode terminated, the
    value of its final observation where it was truncated. ``done`` is 1 where an episode ended
    either way; nothing flows back across it.
    """
    delta = reward + gamma * next_value - value
    carry = gamma * gae_lambda * (1 - done)
    result = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = delta[t] + carry[t] * following
        result[t] = following
    return result


def policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The clipped surrogate (eq. 7), negated: mean of -min(r A, clip(r, 1 - c, 1 + c) A)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the mean squared error, or the greater of it and that of the clipped value."""
    error = (value - returns).square()
    if clip:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    return 0.5 * error.mean()


@dataclass(frozen=True)
class Experience:
    """A rollout, every tensor (step, environment, ...) or, flattened, (sample, ...). Values,
    advantages and returns are in units of the reward scale."""

    observation: Observation
    action: Tensor
    log_probability: Tensor
    value: Tensor
    advantage: Tensor

    def flat(self) -> Experience:
        return Experience(
            tuple(part.flatten(0, 1) for part in self.observation),
            self.action.flatten(),
            self.log_probability.flatten(),
            self.value.flatten(),
            self.advantage.flatten(),
        )

    def take(self, samples: Tensor) -> Experience:
        return Experience(
            tuple(part[samples] for part in self.observation),
            self.action[samples],
            self.log_probability[samples],
            self.value[samples],
            self.advantage[samples],
        )


class PPO:
    """The learner. Keeps :class:`~.learning.Learner`; all randomness is the generator's."""

    def __init__(
        self,
        config: PPOConfig,
        module: ActorCritic,
        environment: Environment,
        generator: torch.Generator,
    ) -> None:
        self.config = config
        self.module = module
        self.environment = environment
        self.generator = generator
        self.optimiser = torch.optim.Adam(
            module.parameters(), lr=config.learning_rate, eps=1e-5, fused=True
        )
        self.observation = environment.reset()
        self.env_steps = 0
        self.gradient_steps = 0

    def update(self) -> dict[str, float]:
        """One rollout and the passes over it."""
        rate = self.config.learning_rate * max(1 - self.env_steps / self.config.total_steps, 0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        experience, reward = self.gather()
        return {**self.learn(experience), "reward": reward, "learning_rate": rate}

    def evaluate(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Log probabilities (batch, action), and value (batch,) in units of the scale."""
        policy: Policy = self.module(*self.environment.inputs(observation))
        return policy.logits.log_softmax(dim=-1), policy.value / self.module.reward_scale

    @torch.no_grad()
    def gather(self) -> tuple[Experience, float]:
        """A rollout of every environment, and the mean reward of its steps.

        Raw rewards set the module's reward scale at the first rollout.
        """
        observations, actions, chosen, values = [], [], [], []
        steps = []
        for _ in range(self.config.rollout):
            logp, value = self.evaluate(self.observation)
            noise = torch.empty_like(logp).exponential_(generator=self.generator)
            action = (logp - noise.log()).argmax(dim=-1)  # the Gumbel trick: a sample
            step = self.environment.step(action)
            observations.append(self.observation)
            actions.append(action)
            chosen.append(logp.gather(-1, action.unsqueeze(-1)).squeeze(-1))
            values.append(value)
            steps.append(step)
            self.observation = step.observation
        reward = torch.stack([step.reward for step in steps])  # (step, environment)
        terminated = torch.stack([step.terminated for step in steps])
        truncated = torch.stack([step.truncated for step in steps])
        value = torch.stack(values)
        if not self.env_steps:
            mean_square = reward.square().mean()
            self.module.reward_scale.copy_(torch.where(mean_square > 0, mean_square.sqrt(), 1.0))
        self.env_steps += reward.numel()
        next_value = torch.cat([value[1:], self.evaluate(self.observation)[1].unsqueeze(0)])
        if truncated.any():
            final = tuple(
                torch.stack(parts)[truncated]
                for parts in zip(*(step.final for step in steps), strict=True)
            )
            next_value[truncated] = self.evaluate(final)[1]
        next_value = next_value * ~terminated
        experience = Experience(
            observation=tuple(torch.stack(parts) for parts in zip(*observations, strict=True)),
            action=torch.stack(actions),
            log_probability=torch.stack(chosen),
            value=value,
            advantage=advantages(
                reward / self.module.reward_scale,
                value,
                next_value,
                (terminated | truncated).to(value.dtype),
                self.config.gamma,
                self.config.gae_lambda,
            ),
        )
        return experience, float(reward.mean())

    def learn(self, experience: Experience) -> dict[str, float]:
        """Clipped gradient steps on a rollout; figures are means over the steps taken."""
        config, samples = self.config, experience.flat()
        figures: list[Tensor] = []
        for _ in range(config.epochs):
            order = torch.randperm(
                len(samples.action), generator=self.generator, device=samples.action.device
            )
            parts = order.chunk(config.minibatches)
            figures.extend(self.gradient_step(samples.take(part)) for part in parts)
            kl = torch.stack(figures[-len(parts) :])[:, NAMES.index("kl")].mean()
            if config.target_kl and float(kl) > config.target_kl:
                break
        return dict(zip(NAMES, torch.stack(figures).mean(dim=0).tolist(), strict=True))

    def gradient_step(self, batch: Experience) -> Tensor:
        """Figures of one minibatch, in the order of ``NAMES``."""
        config = self.config
        logp, value = self.evaluate(batch.observation)
        log_ratio = logp.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) - batch.log_probability
        advantage = batch.advantage - batch.advantage.mean()
        advantage = advantage / (advantage.square().mean().sqrt() + 1e-8)
        policy = policy_loss(log_ratio, advantage, config.clip)
        values = value_loss(value, batch.value, batch.value + batch.advantage, config.value_clip)
        entropy = -(logp.exp() * logp).sum(dim=-1).mean()
        loss = policy + config.value_weight * values - config.entropy_weight * entropy
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), config.max_grad_norm)
        self.optimiser.step()
        self.gradient_steps += 1
        with torch.no_grad():
            kl = (log_ratio.exp() - 1 - log_ratio).mean()
            return torch.stack([loss, policy, values, entropy, kl, norm])


NAMES = ("loss", "policy_loss", "value_loss", "entropy", "kl", "gradient_norm")

FAMILY = PolicyFamily(name="ppo", view="bars", config=PPOConfig, build=ActorCritic, learner=PPO)
