"""What the fork server imports, and nobody else: all that workers need, and an end of its own when its launcher has ended.

Its end is what tells workers (`launch_local`): they are its children, and would keep it alive.
"""

from __future__ import annotations

import signal

from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

import recpipe.train.session  # noqa: F401

_prctl_pr_set_pdeathsig(signal.SIGKILL)
