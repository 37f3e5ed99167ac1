"""What the fork server imports, and nobody else: all that workers need, and an end of its own when its launcher has ended.

Its end is what tells workers (`local_worker`): they are its children, and would keep it alive.
"""

from __future__ import annotations

import signal

from recpipe.train.local_worker import hear_of_parents_end

# Before the long imports: a launcher may be killed while they are made.
hear_of_parents_end(signal.SIGKILL)

import recpipe.train.session  # noqa: E402, F401
