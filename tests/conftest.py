"""What every test shares: Hydra's process-wide state does not leak from one test to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_hydra() -> Iterator[None]:
    """Forgets what a command left in Hydra's singletons."""
    yield
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None
