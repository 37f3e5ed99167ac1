"""Benchmarks of whole steps: recpipe beside TorchRec, how much of an exchange is hidden, and where the time goes."""
