# `make demo` and `make test` set themselves up: the first call creates .venv and installs with the tested versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check slow docs clean

demo: $(READY)
	@$(BIN)/afaf demo

# As many at once as there are cores, up to four; one thread each, for the tests' networks are too small to share out.
test: $(READY) check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

check: $(READY)
	$(BIN)/ruff check src tests benchmarks paper docs/*.py
	$(BIN)/ruff format --check src tests benchmarks paper docs/*.py
	$(BIN)/mypy
	$(BIN)/lint-imports

slow: $(READY)
	$(BIN)/python -m pytest -m "slow"

# Sphinx, MyST and furo: maintained, one source folder for repository and site, broken links and references are errors (-W).
docs: $(READY)
	rm -rf build/site
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/site-cache -E . build/site
	@echo "build/site/index.html"

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	@touch $@

clean:
	rm -rf $(VENV)
