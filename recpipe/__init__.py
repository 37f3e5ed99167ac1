"""recpipe: a hybrid-parallel trainer for recommendation models. Sharded tables feed a pipelined dense tower."""

__version__ = "0.1.0"
