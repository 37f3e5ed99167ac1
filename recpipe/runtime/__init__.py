"""Executes programs: the order of actions that `recpipe.schedule` proves, on this rank's stages, tables and channels."""
