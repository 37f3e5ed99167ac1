"""Verbs on process groups: setup, collectives, bucketed reduction, and a count of the bytes that leave a rank."""

from recpipe.comm.channels import Channels
from recpipe.comm.groups import Groups
from recpipe.comm.lane import Lane, Pending
from recpipe.comm.reduce import GradientReducer
from recpipe.comm.short import ShortLane
from recpipe.comm.traffic import Traffic

__all__ = ["Channels", "GradientReducer", "Groups", "Lane", "Pending", "ShortLane", "Traffic"]
