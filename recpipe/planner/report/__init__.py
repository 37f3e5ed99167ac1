"""A plan explained: the numbers (`facts`), a terminal report, and one self-contained page."""
