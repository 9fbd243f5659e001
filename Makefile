# Needs Python 3.11 or newer with venv and pip, and make. Everything else is installed into .venv, once.
#   make train      train PPO on CartPole-v1 until greedy episodes reach 500, then say how to watch it
#   make test       run the short part of the tests   PYTEST_ARGS='-k gae -x' passes options on, '-n 0 --pdb' too
#   make test-long  run what `make test` leaves out: what is long, and many random examples
#   make test-all   run both
#   make lint       ruff, pyright, the import contracts
#   make learning   the long learning runs, and their curves in benchmarks/results/learning.jsonl
#   make examples   every example, one after another, each to its stated result
#   make bench      the benchmarks, and the tables of BENCHMARKS.md from what they measured
#   make docs       the documentation as a site, in build/website/html; any warning is an error
#   make dist       the wheel, the source archive, and the clients for npm and NuGet, into dist
#   make clean      remove .venv and caches; runs/ and videos/ stay

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST_ARGS ?=
# Bytecode is written even where the environment forbids it: each process would compile all tests anew, which takes 7 s.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

.PHONY: train test test-long test-all lint learning examples bench docs dist clean
.DELETE_ON_ERROR:

train: .venv/.installed
	$(BIN)/rollax train -f examples/cartpole-ppo.yaml --must-reach

test: .venv/.installed-test
	$(PYTEST) $(PYTEST_ARGS)

test-long: .venv/.installed-test
	$(PYTEST) -m '(long or hypothesis) and not learning' --hypothesis-profile=many \
		--jaxtyping-packages=rollax.ops,rollax.models,rollax.policy,beartype.beartype $(PYTEST_ARGS)

test-all: test test-long

lint: .venv/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

learning: .venv/.installed-learning
	$(BIN)/python -m pytest -m learning --optimized --durations=0 --learning-results=benchmarks/results/learning.jsonl $(PYTEST_ARGS)

examples: .venv/.installed-test
	@for script in examples/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench: .venv/.installed-bench
	$(BIN)/python -m benchmarks.run_all
	$(BIN)/python -m benchmarks.report

docs: .venv/.installed-docs
	$(BIN)/python -m website

dist: .venv/.installed-test
	$(BIN)/python .ci/dist

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# A stamp is written only after its install succeeded, so an interrupted install is simply done again.
.venv/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "rollax needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making .venv"; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing rollax into .venv"
	@$(INSTALL) --editable '.[video]'
	@touch $@

.venv/.installed-test: .venv/.installed
	@echo "Installing what the tests need"
	@$(INSTALL) --editable '.[test]'
	@touch $@

.venv/.installed-learning: .venv/.installed-test
	@echo "Installing what the learning runs need"
	@$(INSTALL) --editable '.[learning]'
	@touch $@

.venv/.installed-lint: .venv/.installed-test
	@echo "Installing what the checks need"
	@$(INSTALL) --editable '.[test,lint]'
	@touch $@

.venv/.installed-docs: .venv/.installed
	@echo "Installing what the documentation site needs"
	@$(INSTALL) --editable '.[docs]'
	@touch $@

.venv/.installed-bench: .venv/.installed
	@echo "Installing what the benchmarks need"
	@$(INSTALL) --editable '.[bench]'
	@touch $@
