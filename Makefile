# Two commands do everything from a fresh clone: make generate, make test.
# make generate PROMPT='...' ARGS='--budget 32' EXTRAS=cuda13

# $(value) keeps a dollar sign in a prompt as it is typed.
override PROMPT := $(or $(value PROMPT),Tell me a short story about a lighthouse keeper who finds a small boat.)
ARGS ?=
EXTRAS ?=
TESTS ?= tests
export PROMPT PYTHON

PY := .venv/bin/python

.PHONY: generate test lint format clean

generate:
	@sh .ci/install "$(EXTRAS)"
	@$(PY) -m jddtree.generate "$$PROMPT" $(ARGS)

test: lint
	@$(PY) -m pytest -n 2 --dist worksteal $(TESTS)

lint:
	@sh .ci/install test,train
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyrefly check --output-format min-text

format:
	@sh .ci/install test,train
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
