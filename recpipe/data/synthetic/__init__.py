"""Rows made by a seeded teacher, whose own score is the best that any model can reach."""
