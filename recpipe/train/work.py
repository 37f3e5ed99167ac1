"""What workers run, by name: a launcher need not import it, and starts them the sooner."""

from __future__ import annotations

from typing import Any


def train(cfg: Any) -> int:
    """See `recpipe.train.session.run_train`."""
    from recpipe.train.session import run_train

    return run_train(cfg)


def evaluate(cfg: Any) -> int:
    """See `recpipe.train.session.run_eval`."""
    from recpipe.train.session import run_eval

    return run_eval(cfg)


def score(cfg: Any) -> int:
    """See `recpipe.train.score.run_score`."""
    from recpipe.train.score import run_score

    return run_score(cfg)


def verify(cfg: Any) -> int:
    """See `recpipe.train.session.run_verify`."""
    from recpipe.train.session import run_verify

    return run_verify(cfg)


def profile(cfg: Any) -> int:
    """See `recpipe.train.session.run_profile`."""
    from recpipe.train.session import run_profile

    return run_profile(cfg)
