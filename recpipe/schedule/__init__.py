"""Schedules as data: build, check, simulate, draw, choose. Standard library only, no torch, imports in milliseconds.

Start at `ir` (the records), `deps` (what waits for what), `families` (who makes orders), `assemble` (passes in order),
`check`, `simulate` and `auto`.
"""
