"""Verbs on process groups: setup, all-to-all, bucketed reduction, and a count of the bytes that leave a rank."""

from recpipe.comm.alltoall import AllToAll, Pending
from recpipe.comm.groups import Groups
from recpipe.comm.reduce import GradientReducer
from recpipe.comm.traffic import Traffic

__all__ = ["AllToAll", "GradientReducer", "Groups", "Pending", "Traffic"]
