# Every target makes what it needs. With uv on PATH it is used; Python >= 3.11 and make are enough.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
RESULTS ?= results
TEST_PROCESSES ?= 2
# Container images of Python often set it. Each process would then compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[36mmake %-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml requirements/dev.txt hack/venv
	@hack/venv $(VENV)
	@touch $(STAMP)

$(VENV)-perf/.ready: requirements/perf.txt hack/venv
	@hack/venv $(VENV)-perf requirements/perf.txt
	@touch $@

$(VENV)-fuzz/.ready: requirements/fuzz.txt hack/venv
	@hack/venv $(VENV)-fuzz requirements/fuzz.txt
	@touch $@

$(VENV)-mutation/.ready: requirements/mutation.txt hack/venv
	@hack/venv $(VENV)-mutation requirements/mutation.txt
	@touch $@

$(VENV)-conformance/.ready: requirements/conformance.txt hack/venv
	@hack/venv $(VENV)-conformance requirements/conformance.txt
	@touch $@

$(VENV)-litellm/.ready: requirements/litellm.txt hack/venv
	@hack/venv $(VENV)-litellm requirements/litellm.txt
	@touch $@

.PHONY: venv
venv: $(STAMP) ## make .venv with the locked dependencies

.PHONY: demo
demo: $(STAMP) ## run ten real debugging episodes on this machine
	@sandbox=$$($(BIN)/python hack/demo_sandbox.py) && \
	  $(BIN)/dgym run --bundled mini_nightmare --agent replay --force --sandbox $$sandbox --results $(RESULTS)/demo
	@printf '\nResults are in %s. Try next:\n' '$(RESULTS)/demo'
	@printf '  %s\n' \
	  "$(BIN)/dgym replay $(RESULTS)/demo/local/*/*/1/trajectory.jsonl" \
	  "$(BIN)/dgym run examples/episode.yaml --agent human" \
	  "$(BIN)/dgym tools pdb"

PYTEST = -m pytest -q -n $(TEST_PROCESSES) --dist worksteal
# The long suites end with their slowest tests.
SLOWEST = --durations=15 --durations-min=5

ALL = not matrix and not monitoring and not browser

.PHONY: test
test: $(STAMP) ## unit and integration tests, no cluster and no binaries
	@hack/system-packages
	@$(BIN)/python $(PYTEST)

.PHONY: test-all
test-all: $(STAMP) ## make test with long tests, variations and those of make binaries; fails below 90 % of the lines
	@hack/system-packages
	@$(BIN)/coverage erase
	@COVERAGE_FILE=$(abspath .coverage) $(BIN)/coverage run $(PYTEST) $(SLOWEST) --hypothesis-profile thorough -m "$(ALL)"
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --fail-under=90

.PHONY: binaries
binaries: $(STAMP) ## build what tests run against, once, with Go: a cluster's programs, helm, an S3 server, Prometheus
	@$(BIN)/python hack/cluster/cluster build
	@hack/versitygw

.PHONY: monitoring
monitoring: $(STAMP) ## rules, alerts and dashboards under the real Prometheus; installs Debian's if root there
	@hack/system-packages monitoring
	@$(BIN)/python $(PYTEST) -m "" tests/integration/monitoring tests/chart/test_chart_monitoring.py tests/integration/operator/test_operator_prometheus.py

.PHONY: ui-test
ui-test: $(STAMP) ## the pages of dgym ui in a headless Chromium; installs Debian's if root there
	@hack/system-packages browser
	@$(BIN)/python $(PYTEST) -m browser tests/integration/ui

.PHONY: test-matrix
test-matrix: $(STAMP) ## the runner and debugger under every Python and pytest version found
	@hack/system-packages
	@$(BIN)/python -m pytest -m "" tests/integration/runner tests/integration/session/scoring

.PHONY: repositories
repositories: $(STAMP) ## dgym init and dgym check on packages from PyPI: NAMES=, SAMPLE=1 the six of CI; else writes tests/repositories/RESULTS.md
	@hack/system-packages
	@$(BIN)/python -m tests.repositories $(if $(SAMPLE),--sample,$(or $(NAMES),--write))

.PHONY: conformance
conformance: $(STAMP) $(VENV)-conformance/.ready ## scores compared with those of SWE-bench's harness: COUNT=2000, RECORD=--record
	@$(BIN)/python -m tests.conformance $(VENV)-conformance/lib/python3*/site-packages --count $(or $(COUNT),2000) $(RECORD)

.PHONY: litellm
litellm: $(STAMP) $(VENV)-litellm/.ready ## each agent that asks a model, through a real LiteLLM proxy on this machine
	@LITELLM=$(abspath $(VENV)-litellm/bin/litellm) $(BIN)/python -m pytest -q tests/litellm

.PHONY: simulate
simulate: $(STAMP) ## the operator in simulated clusters under faults, by seeds: SCHEDULES=10000, FIRST=0 (20 are in make test)
	@$(BIN)/python -m tests.simulation $(or $(SCHEDULES),10000) $(or $(FIRST),0)

.PHONY: fuzz
fuzz: $(STAMP) $(VENV)-fuzz/.ready ## hostile input for a sidecar and every reader: SECONDS=60 for all together, TARGETS=, SEED=
	@hack/system-packages
	@FUZZ_PYTHON=$(abspath $(VENV)-fuzz/bin/python) $(BIN)/python -m tests.fuzz --together $(or $(SECONDS),60) \
	  $(if $(SEED),--seed $(SEED)) $(TARGETS)

.PHONY: mutation
mutation: $(STAMP) $(VENV)-mutation/.ready ## mutants that the tests do not find, in a sample: COUNT=300, SEED=1; an hour or more
	@hack/system-packages
	@$(VENV)-mutation/bin/python -m tests.mutation --count $(or $(COUNT),300) --seed $(or $(SEED),1)

.PHONY: images
images: $(STAMP) ## build the image that tasks without one run in, with podman or docker
	@hack/images

.PHONY: release release-check
release: $(STAMP) ## wheel, source distribution, chart, images, bills of materials and checksums, into dist/: IMAGES=, REGISTRY=
	@hack/system-packages containers
	@$(BIN)/python -m hack.release $(RELEASE)

release-check: $(STAMP) ## the same twice, in other circumstances, compared byte by byte; the wheel is installed and used
	@hack/system-packages containers
	@rm -rf build/release-check
	@$(BIN)/python -m hack.release --check --output build/release-check $(RELEASE)

RELEASE = $(if $(filter undefined,$(origin IMAGES)),,--images '$(IMAGES)') $(if $(REGISTRY),--registry $(REGISTRY))

.PHONY: e2e
e2e: e2e-containers e2e-cluster ## episodes in real containers and on a real cluster, which it makes if need be

.PHONY: e2e-containers
e2e-containers: $(STAMP) ## episodes in real containers, every attack on the score; installs podman if root on Debian
	@hack/system-packages containers
	@hack/images $(BIN)/python $(PYTEST) $(SLOWEST) tests/e2e/podman tests/e2e/unisolated

.PHONY: e2e-cluster
e2e-cluster: $(STAMP) ## episodes on a real cluster: E2E_CLUSTER=existing and KUBECONFIG, else kind, else hack/cluster
	@hack/e2e $(BIN)/python -m tests.e2e.cluster -q -n 5 --dist loadfile $(SLOWEST)

.PHONY: e2e-faults
e2e-faults: $(STAMP) ## faults at every moment of an episode, and a soak: RUNS=3, SOAK_SEED=, E2E_FAULTS=sample; docs/faults.md
	@E2E_FAULT_RUNS=$(RUNS) hack/e2e $(BIN)/python -m tests.e2e.cluster.faults

.PHONY: e2e-security
e2e-security: $(STAMP) ## every attack on this machine, in containers and in pods, rights and Secrets: RUNS=3; docs/attacks.md
	@[[ "$(or $(RUNS),1)" =~ ^[1-9][0-9]*$$ ]] || \
	  { echo "make e2e-security: RUNS=$(RUNS) is not a number of runs; give 1 or more" >&2; exit 2; }
	@hack/system-packages containers
	@records=$$(mktemp -d); status=0; for run in $$(seq $(or $(RUNS),1)); do \
	  DGYM_ATTACKS=$$records $(BIN)/python $(PYTEST) -m attack || status=$$?; \
	  DGYM_ATTACKS=$$records hack/images $(BIN)/python $(PYTEST) tests/e2e/podman tests/e2e/unisolated || status=$$?; \
	  DGYM_ATTACKS=$$records E2E_SECURITY=all hack/e2e $(BIN)/python -m tests.e2e.cluster -q -n 3 --dist loadfile || status=$$?; \
	done; $(BIN)/python -m tests.security --records $$records || status=1; rm -r $$records; exit $$status

.PHONY: cluster-up cluster-down cluster-load
cluster-up: $(STAMP) ## start a cluster: E2E_CLUSTER=existing|kind|local chooses; prints its kubeconfig
	@hack/system-packages cluster
	@$(BIN)/python hack/cluster/cluster up

cluster-down: $(STAMP) ## remove the cluster that cluster-up made
	@$(BIN)/python hack/cluster/cluster down

cluster-load: $(STAMP) ## build dgym's images and bring them to the cluster, as the chart names them; prints their names
	@hack/system-packages containers
	@references=$$(hack/images --all); \
	  $(BIN)/python hack/cluster/cluster load $$references $$(sed -E 's/-[0-9a-f]{20}$$//' <<<"$$references"); \
	  printf '%s\n' "$$references"

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, import-linter, the runner's own checks, the site of documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy hack/cluster hack/monitoring hack/chart.py hack/nightmare.py hack/openapi.py hack/pictures.py hack/release hack/site.py hack/tables.py tests/security
	@$(BIN)/lint-imports
	@$(BIN)/zizmor --offline --pedantic --quiet --no-progress .github/workflows
	@$(BIN)/python hack/check_runner.py
	@$(BIN)/python hack/check_files.py
	@$(BIN)/python hack/check_prose.py
	@$(BIN)/python hack/chart.py --check
	@$(BIN)/python hack/openapi.py --check
	@$(BIN)/python hack/tables.py --check
	@$(BIN)/python -m tests.security --check
	@$(BIN)/python -m hack.nightmare --check
	@$(BIN)/python -m hack.monitoring --check
	@$(MAKE) --no-print-directory docs

.PHONY: docs
docs: $(STAMP) ## build the site of documentation into site/; a dead link or a page without a place is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | sed '/^INFO /d'

.PHONY: format
format: $(STAMP) ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: perf
perf: $(STAMP) $(VENV)-perf/.ready ## measure and print medians, ratios and counts; JSON into perf-results/
	@hack/system-packages containers
	@PERF_PYTHON=$(abspath $(VENV)-perf/bin/python) hack/images $(BIN)/python -m tests.perf
	@$(BIN)/python -m tests.perf throughput active || echo "make perf: the operator was not measured at scale, see above" >&2
	@hack/e2e $(BIN)/python -m tests.perf cluster sandboxpools || echo "make perf: nothing was measured on a cluster, see above" >&2

.PHONY: scale
scale: $(STAMP) ## measure the operator from 100 to 10,000 episodes; about an hour; docs/scale.md
	@$(BIN)/python -m tests.perf.scale

.PHONY: lock
lock: ## resolve the dependencies again (needs uv)
	@hack/lock

.PHONY: clean
clean: ## remove what the other targets made
	rm -rf site $(VENV) $(VENV)-perf $(VENV)-fuzz $(VENV)-mutation $(VENV)-conformance $(VENV)-litellm build dist .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis perf-results
