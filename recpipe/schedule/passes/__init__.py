"""Passes: pure functions from a program to a program. `assemble` says in which order they run."""
