# `make bench`, `make check` and `make test` make the virtual environment on their first run; ARGS reaches the command.
VENV ?= .venv
PYTHON_IN_VENV = $(VENV)/bin/python
READY = $(VENV)/.ready

.PHONY: bench check docs lint lock quick test clean

bench: $(READY)
	@$(PYTHON_IN_VENV) -m trampoline bench $(or $(ARGS),--flavour all)

# Everything.
test: $(READY)
	scripts/set-up-tools
	@$(MAKE) --no-print-directory lint
	$(PYTHON_IN_VENV) -m pytest -n auto --dist worksteal $(ARGS)

# In a minute and a half on two cores: lint, types, contracts, and the tests that are not slow.
check: $(READY)
	@$(MAKE) --no-print-directory -j2 -O lint quick

lint: $(READY)
	$(PYTHON_IN_VENV) -m ruff check
	$(PYTHON_IN_VENV) -m mypy asm emu trampoline $(wildcard examples/*.py)
	$(VENV)/bin/lint-imports

quick: $(READY)
	$(PYTHON_IN_VENV) -m pytest -q -n auto --dist worksteal -m "not slow" $(ARGS)

$(READY): requirements.lock pyproject.toml scripts/set-up
	scripts/set-up $(VENV)

docs: $(READY)
	$(PYTHON_IN_VENV) -m sphinx -q -W -b html docs build/docs

# Needs uv on the path. The lock holds for every supported Python.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-annotate --all-extras --group pyproject.toml:test --group pyproject.toml:build pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
