# make install   makes .venv with the right kernel library for this machine
# make train     trains the default configuration on 2 local processes; ARGS="model=dcn_v2 ..." changes it
# make test      runs the tests, two at a time; ARGS="-k name" selects
# PYTHON picks the interpreter; RECPIPE_DEVICE=cpu or cuda overrides what is detected

PYTHON ?= python3
ARGS ?=

.PHONY: install train test lint types

install:
	@$(PYTHON) tools/install.py

train: install
	@.venv/bin/recpipe train $(ARGS)

test: install
	.venv/bin/python -m pytest -n 2 $(ARGS)

lint: install
	.venv/bin/ruff check .

types: install
	.venv/bin/mypy
