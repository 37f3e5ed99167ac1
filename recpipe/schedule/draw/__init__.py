"""Drawings of a timeline, predicted or measured: `terminal` in text, `svg` as a picture."""
