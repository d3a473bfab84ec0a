# make demo    watch the inbox agent get better (SEED=n)
# make test    set up, then the tests, real vLLM among them (make test-slow: what takes minutes; ARGS="-k some"; make room-store: a part)
# make lint    ruff, mypy and the limits of the source tree
# make structure   the figures of the source tree, and which are over their limit
# make page    build the web page from page/ into the package (needs npm)
# make pictures   take the pictures of docs/page.md (needs Chromium)
# make docs    build the documentation site into site/; any warning fails it, such as a broken link
# make fuzz    coverage-guided, ARGS="chunked -max_total_time=600" (needs atheris)
# make fuzz-bulk   many inputs over the whole way in, fast: ARGS="--corpus CORPUS --inputs 10000000", where
#              make fuzz ARGS="requests CORPUS -max_total_time=300" has filled the folder CORPUS
# make bench   the benchmarks that need no GPU
# make curves  every task of examples/ learns, by its reward and by a judge alone (ARGS="--only NAME --seed N"; hours)
# make models       tiny models of many families: load, step, publish, vLLM loads; writes docs/reference/families.md (minutes)
# make findings     what real libraries do and one would not guess, as scripts that run (findings/; minutes, downloads)
# make first-hour   a foreign agent at the default settings, with rewards and then with a judge (25 minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
NODE_AGENT := examples/words/node_modules/.package-lock.json
ARGS ?=
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
export LITELLM_LOCAL_MODEL_COST_MAP ?= True
# where it is set, each process compiles torch and vLLM again, which is half of a start of vLLM
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs page pictures structure test test-fast test-engine test-slow test-deploy chaos fuzz fuzz-bulk lint setup warm services bench bench-proxy bench-ruler bench-trainer bench-peers bench-store bench-growth bench-gate bench-replay bench-tenants curves curves-ci models first-hour first-hour-ci findings clean

PIP = $(BIN)/python -m pip install -q --disable-pip-version-check
# --no-compile: most of 31,000 files are never imported, and compiling all takes longer than the rest of the setup.
# Two of pip at once, because one unpacks on one core; without dependencies they write different files.
setup: $(VENV)/.ready

$(VENV)/.ready: requirements/lock.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile torch==2.13.0
	awk 'NR % 2' requirements/lock.txt >$(VENV)/odd.txt
	awk 'NR % 2 == 0' requirements/lock.txt >$(VENV)/even.txt
	$(PIP) --no-compile --no-deps -r $(VENV)/odd.txt & odd=$$!; $(PIP) --no-compile --no-deps -r $(VENV)/even.txt && wait $$odd
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/slipstream demo --seed $(SEED) $(ARGS)

services:
	sh scripts/services.sh

# Without npm, or where it reaches no registry, the tests of this agent are left out.
$(NODE_AGENT): examples/words/package-lock.json
	@npm ci --prefix examples/words --silent --no-audit --no-fund || echo "npm ci --prefix examples/words failed: the Node agent is not tested"

# Compile what the tests import, beside the linters: else the first rooms compile it each by itself, 75 seconds of a slow core
warm: setup
	@$(BIN)/python -m pytest -qqq --collect-only >$(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

# A room of tests is a process of its own, which imports what its tests need: all that all tests need takes 50 seconds of
# a core and a gigabyte. Three rooms run at once, those of the engine and then the long ones first.
engine-1_room = $(shell grep -rl --include='test_*.py' mark.engine tests | sort -r | awk 'NR % 2')
engine-2_room = $(shell grep -rl --include='test_*.py' mark.engine tests | sort -r | awk 'NR % 2 == 0')
store_room = tests/proxy/store
control-1_room = $(wildcard tests/proxy/control/test_[a-m]*.py)
control-2_room = $(wildcard tests/proxy/control/test_[n-z]*.py tests/proxy/control/*/)
proxy-1_room = $(wildcard tests/proxy/test_[a-h]*.py)
proxy-2_room = $(wildcard tests/proxy/test_[i-z]*.py)
trainer_room = tests/trainer
vllm_room = tests/engine tests/integration
sdk_room = tests/sdk
examples_room = tests/examples tests/benchmarks
judge_room = tests/judge tests/plugins
rest_room = $(filter-out tests/proxy/ $(addsuffix /,$(foreach room,$(FAST_ROOMS),$($(room)_room))),$(wildcard tests/*/))
ENGINE_ROOMS = engine-1 engine-2
FAST_ROOMS = store control-1 control-2 proxy-1 trainer proxy-2 vllm sdk examples judge
ROOMS = @$(MAKE) --no-print-directory --keep-going --output-sync --jobs 3 $(addprefix room-,$(1))

test: setup services | $(NODE_AGENT)
	$(call ROOMS,$(ENGINE_ROOMS) $(FAST_ROOMS) rest)

test-fast: setup services | $(NODE_AGENT)
	$(call ROOMS,$(FAST_ROOMS) rest)

test-engine: setup services
	$(call ROOMS,$(ENGINE_ROOMS))

USUAL = not slow and not learning and not chaos
room-engine-%:
	@$(call PYTEST,engine-$*,engine and $(USUAL))

room-%:
	@export OMP_NUM_THREADS=1; $(call PYTEST,$*,not engine and $(USUAL))

# 5: of what ARGS asks for, the room has nothing
PYTEST = echo "room $(1)"; $(BIN)/python -m pytest -q -m "$(2)" $($(1)_room) $(ARGS) || [ $$? = 5 ]

# What is seldom needed: before a release, and by whoever changes it
test-slow: setup services
	$(BIN)/python -m pytest -q -m "slow or learning or chaos" $(ARGS)

test-deploy: setup services .venv-sky/.ready
	$(BIN)/python -m pytest -q tests/deploy $(ARGS)

# SkyPilot in an environment of its own: half a gigabyte that nothing else needs
.venv-sky/.ready:
	$(PYTHON) -m venv .venv-sky
	.venv-sky/bin/python -m pip install -q --disable-pip-version-check skypilot==0.14.1
	touch $@

bench: bench-store bench-proxy bench-trainer

bench-proxy: setup
	-sh scripts/services.sh nginx
	$(BIN)/python -m benchmarks.proxy.bench $(ARGS)

bench-store: setup
	$(BIN)/python -m benchmarks.store.bench_store $(ARGS)

bench-growth: setup
	-$(BIN)/python -m slipstream_proxy.process.compiled
	$(BIN)/python -m benchmarks.store.bench_growth $(ARGS)

bench-ruler: setup
	$(BIN)/python -m benchmarks.judge.bench_ruler $(ARGS)

bench-trainer: setup
	$(BIN)/python -m benchmarks.trainer.bench_trainer $(ARGS)

bench-peers: setup
	$(BIN)/python -m benchmarks.peers.peers $(ARGS)

bench-gate: setup
	$(BIN)/python -m benchmarks.gate.all_worlds
	$(BIN)/python -m benchmarks.gate.bench_gate $(ARGS)

bench-replay: setup
	$(BIN)/python -m benchmarks.replay.bench_replay $(ARGS)

# real vLLM twice: many tenants at few slots (ARGS="--tenants 64 --slots 8 --calls 1000"), and two that learn
bench-tenants: setup
	$(BIN)/python -m benchmarks.tenants.serving $(ARGS)
	$(BIN)/python -m benchmarks.tenants.learning

models: setup
	$(BIN)/python -m benchmarks.models.bench_models $(ARGS)

findings:
	PYTHON=$(PYTHON) sh scripts/findings.sh $(ARGS)

first-hour: setup
	$(BIN)/python -m benchmarks.first_hour.first_hour --seed $(SEED) $(ARGS)

# less of it, before a release: limits that a slow machine still meets
first-hour-ci: setup
	$(BIN)/python -m benchmarks.first_hour.first_hour --only tagged --minutes 2.5 --games 100 --least-gain 0.1 $(ARGS)

curves: setup | $(NODE_AGENT)
	$(BIN)/python -m benchmarks.curves.curves $(ARGS)

# what CI runs of it: one task, and a gain that a slow machine still reaches
curves-ci: setup
	$(BIN)/python -m benchmarks.curves.curves --only inbox --by reward --seed 0 --minutes 0.8 --least-gain 0.1 --into $${TMPDIR:-/tmp}/slipstream-curves-ci $(ARGS)

chaos: setup
	$(BIN)/python tests/chaos/chaos.py --rounds 200 $(ARGS)

fuzz: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target .fuzz atheris==3.0.0
	PYTHONPATH=.fuzz $(BIN)/python tests/fuzz/fuzz.py $(or $(ARGS),record -max_total_time=60)

fuzz-bulk: setup
	-$(BIN)/python -m slipstream_proxy.process.compiled
	$(BIN)/python tests/fuzz/bulk.py $(ARGS)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

page: setup
	$(BIN)/python scripts/page.py $(ARGS)

pictures: setup
	PAGE_PICTURES=docs/pictures $(BIN)/python -m pytest -q tests/proxy/control/test_page_browser.py -k day_s_work

structure: setup
	$(BIN)/python scripts/structure.py $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/structure.py --where

clean:
	rm -rf $(VENV) .venv-sky slipstream-data .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
