"""The rules V1 to V12, in the order in which they are asked: a later rule may rely on the earlier ones.

V11 (memory) and V4 (deadlock) are in `check`.
"""

from __future__ import annotations

from recpipe.schedule.rules.base import Rule
from recpipe.schedule.rules.exchange import complete_chain, same_order
from recpipe.schedule.rules.messages import channel_order, paired
from recpipe.schedule.rules.versions import empty_stores, table_versions, updates, weight_versions
from recpipe.schedule.rules.work import fused_blocks, once_on_owner, one_forward_one_backward, results_first

RULES: tuple[Rule, ...] = (
    once_on_owner,
    one_forward_one_backward,
    complete_chain,
    paired,
    results_first,
    fused_blocks,
    channel_order,
    same_order,
    updates,
    weight_versions,
    table_versions,
    empty_stores,
)
