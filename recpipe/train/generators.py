"""The random generators of this process: torch's, numpy's and Python's own, for a user's block that draws from one.

Nothing of recpipe draws from them. They start from the run's seed and the rank, and a checkpoint keeps where they stand.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from recpipe.model.seeding import stable_key

_WORDS = 624
"""Words of a Mersenne twister, which numpy and Python have alike."""


def seed_generators(seed: int, rank: int, step: int = 0) -> None:
    """Starts all of them anew.

    Args:
        step: updates done; a run that goes on among another number of ranks does not draw again what was drawn.
    """
    key = stable_key("generators", seed, rank, step)
    torch.manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


def host_state() -> torch.Tensor:
    """Where numpy's and Python's generators stand: float64, which holds their 32-bit words exactly."""
    _, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    _, own, own_gauss = random.getstate()
    values = [*np.asarray(words).tolist(), position, has_gauss, gauss, *own, int(own_gauss is not None), own_gauss or 0.0]
    return torch.tensor(values, dtype=torch.float64)


def set_host_state(state: torch.Tensor) -> None:
    """Puts both where `host_state` found them."""
    values = state.tolist()
    words, (position, has_gauss, gauss), rest = values[:_WORDS], values[_WORDS : _WORDS + 3], values[_WORDS + 3 :]
    key = np.array(words, dtype=np.uint32)
    np.random.set_state(("MT19937", key, int(position), int(has_gauss), gauss))
    *own, has_own_gauss, own_gauss = rest
    random.setstate((3, tuple(map(int, own)), own_gauss if has_own_gauss else None))
