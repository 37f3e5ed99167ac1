"""What workers run, by name: a launcher need not import it, and starts them the sooner."""

from __future__ import annotations

from typing import Any


def train(cfg: Any) -> int:
    """See `recpipe.train.session.run_train`."""
    from recpipe.train.ranks import on_ranks
    from recpipe.train.session import run_train

    return on_ranks(run_train, cfg)


def evaluate(cfg: Any) -> int:
    """See `recpipe.train.session.run_eval`."""
    from recpipe.train.ranks import on_ranks
    from recpipe.train.session import run_eval

    return on_ranks(run_eval, cfg)


def score(cfg: Any) -> int:
    """See `recpipe.train.score.run_score`."""
    from recpipe.train.ranks import on_ranks
    from recpipe.train.score import run_score

    return on_ranks(run_score, cfg)


def verify(cfg: Any) -> int:
    """See `recpipe.train.session.run_verify`."""
    from recpipe.train.ranks import on_ranks
    from recpipe.train.session import run_verify

    return on_ranks(run_verify, cfg)


def profile(cfg: Any) -> int:
    """See `recpipe.train.session.run_profile`."""
    from recpipe.train.ranks import on_ranks
    from recpipe.train.session import run_profile

    return on_ranks(run_profile, cfg)
