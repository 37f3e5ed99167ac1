"""The learning rate over steps: linear warm-up, constant, quadratic decay, then frozen (the policy of DLRM's reference)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LrPolicy:
    """A factor on the configured rates of tables and tower.

    Args:
        warmup_steps: steps of linear warm-up; 0 for none.
        decay_start: first step of the decay.
        decay_steps: steps of the decay, (1 - x)^2 with x from 0 to 1; 0 for none. Afterwards the rate stays where it ended.
    """

    warmup_steps: int = 0
    decay_start: int = 0
    decay_steps: int = 0

    def factor(self, step: int) -> float:
        """The factor for update number `step`, from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.decay_steps and step >= self.decay_start:
            # The last step of the decay keeps a rest: a rate of exactly zero would waste the steps that follow.
            x = min(step - self.decay_start, self.decay_steps - 1) / self.decay_steps
            return (1.0 - x) ** 2
        return 1.0
