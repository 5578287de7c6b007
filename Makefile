# `make` or `make help` lists what there is. Environments are made on first use and kept; `make clean` removes them.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# The environments below are new: without bytecode every program that the tests start would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
LATEST := .venv-torch-latest
OLDEST := .venv-torch-oldest
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check
# $(call install,ENVIRONMENT,WHAT): by uv, which is several times quicker and keeps one copy for all environments; by pip,
# where uv cannot be had or does not find what pip's own settings name.
install = $(1)/bin/python -m pip install $(PIP_FLAGS) uv==0.13.8 2>/dev/null && \
  index=$$($(1)/bin/python -m pip config list | sed -nE "s/^.*[.]index-url='(.*)'$$/\1/p" | tail -1) && \
  $(1)/bin/python -m uv pip install --quiet --python $(1)/bin/python $${index:+--default-index "$$index"} $(2) 2>/dev/null || \
  $(1)/bin/python -m pip install $(PIP_FLAGS) $(2)
PROJECT := pyproject.toml

RUN_READY := $(VENV)/.ready-run
TEST_READY := $(VENV)/.ready-test
LATEST_READY := $(LATEST)/.ready
OLDEST_READY := $(OLDEST)/.ready
EXTERNAL_READY := build/external-libraries/.ready

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(RUN_READY) ## Set up, then predict GPT-2's training on an RTX 4090 (no GPU needed)
	@$(BIN)/vramcast run --gpu rtx-4090 examples/train_gpt2.py --batch-size 8

.PHONY: setup
setup: $(TEST_READY) $(LATEST_READY) $(OLDEST_READY) ## Make all environments: the recorded torch, the newest, the oldest

.PHONY: test
test: ## Lint, type-check, run every test, and the quick ones with other torches
	@$(MAKE) --no-print-directory -j 2 setup lint # what is linted waits for the first environment alone
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not accuracy and not exhaustive and not browser" || $(BIN)/python -m pytest $(AGAIN)
	$(BIN)/python -m pytest -q -m browser # in a process of its own: Playwright leaves an event loop running
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m accuracy
	$(LATEST)/bin/python -m pytest $(QUICK) || $(LATEST)/bin/python -m pytest $(AGAIN)
	$(OLDEST)/bin/python -m pytest $(QUICK) || $(OLDEST)/bin/python -m pytest $(AGAIN)

# Tests of processes, signals and terminals share two cores here: what failed beside others is tried once more alone.
AGAIN := -q --last-failed --last-failed-no-failures none -m "not accuracy and not exhaustive and not browser"

# Left out: what does not depend on torch.
QUICK := -q -n 2 --dist loadfile --no-loadscope-reorder -m "not accuracy and not slow and not exhaustive" $(addprefix --ignore=tests/,accuracy browser endings \
  features/advise features/diagnose features/sweep features/verbs features/watch gpus jobs/test_bad_input.py jobs/test_foreign_configs.py \
  jobs/test_random_configs.py jobs/test_random_jobs.py jobs/test_readers.py jobs/test_rewrite.py jobs/test_shell_scripts.py \
  jobs/test_text_edits.py lab launchers mcp overlay pytest_plugin security seeds serve test_cli.py test_docs.py test_exports.py \
  test_html_report.py test_input_files.py test_language.py test_layering.py test_walks.py)

.PHONY: quick
quick: ## The quick tests with the torch of PYTHON (requirements/test-quick.txt), which nothing is installed into
	$(PYTHON) -m pytest $(QUICK)

.PHONY: exhaustive
exhaustive: $(TEST_READY) ## The cases that make test leaves out for time
	VRAMCAST_EVERY_WORKLOAD=1 $(BIN)/python -m pytest -q -n 2 -m "exhaustive or accuracy"

.PHONY: lint
lint: $(TEST_READY) ## ruff and mypy, no changes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(TEST_READY) ## Let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: fuzz
fuzz: $(TEST_READY) ## 100,000 mutated inputs of every reader: no traceback, no 2 GiB, no 10 s (about 15 minutes)
	$(BIN)/python -m lab.attacks.fuzz --count 100000

.PHONY: accuracy
accuracy: $(TEST_READY) ## Predict every recorded workload again and rewrite docs/lab/accuracy.md and its summaries
	@if test -n "$${VRAMCAST_EXTERNAL:-}" -o -d ../shared/external; then $(MAKE) --no-print-directory $(EXTERNAL_READY); fi
	$(BIN)/python -m lab.pages.accuracy

.PHONY: bench
bench: $(TEST_READY) ## Time vramcast beside PyTorch's MemTracker (which needs a GPU)
	$(BIN)/python -m lab.comparing.benchmark

.PHONY: job-docs
job-docs: $(TEST_READY) ## Rewrite vramcast.schema.json and the fields in docs/jobs.md from the schema of a job
	$(BIN)/python -m lab.pages.job_docs

.PHONY: golden
golden: $(TEST_READY) ## Rewrite the golden outputs in tests/golden after a change that was meant
	$(BIN)/python -m pytest -q tests/test_report.py tests/test_cli.py tests/jobs/test_commands.py tests/features/verbs tests/features/advise tests/features/watch tests/features/diagnose --overwrite-golden

.PHONY: clean
clean: ## Remove the environments and everything generated
	rm -rf $(VENV) $(LATEST) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was made from, so a second call finds nothing to do.
$(RUN_READY): requirements/run.txt $(PROJECT)
	@$(PYTHON) -c 'import sys; sys.exit("vramcast needs Python 3.11 or newer; try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and transformers into $(VENV) (a few minutes, once)"
	@$(call install,$(VENV),-r requirements/run.txt -e .)
	@touch $@

$(TEST_READY): $(RUN_READY) requirements/test.txt
	@echo "installing the test environment into $(VENV) (a few minutes, once)"
	@$(call install,$(VENV),-r requirements/test.txt -e .)
	@touch $@

# Libraries as old as the published runs on other cards, beside the environment's own.
$(EXTERNAL_READY): requirements/external.txt $(TEST_READY)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --upgrade --target $(@D) -r requirements/external.txt
	@touch $@

.venv-torch-%/.ready: requirements/test-torch-%.txt requirements/test-quick.txt $(PROJECT)
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing another torch into $(@D) (a few minutes, once)"
	@$(call install,$(@D),-r $< -e .)
	@touch $@
