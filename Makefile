# Every target sets up what it needs by itself; see CONTRIBUTING.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
COMPILED_SOURCES := $(wildcard src/tidelog/records/*.py src/tidelog/records/*.pxd) \
	src/tidelog/net/buffers.py \
	$(wildcard src/tidelog/wire/*coder/*.py src/tidelog/wire/*coder/*.pxd) src/tidelog/wire/capi.pxd

# What runs in one process shares the cores; a system test, which starts processes and measures time, has them alone.
define pytest
$(BIN)/python -m pytest -m "$(1)" --numprocesses 2 --dist worksteal tests/unit tests/property tests/sim
$(BIN)/python -m pytest -m "$(1)" tests/system tests/spark
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo run up test test-all wheel test-pythons search check conformance bench lock peers clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## .venv with tidelog in it, compiled if there is a C compiler
	$(if $(filter setup,$(MAKECMDGOALS)),@echo "tidelog is in $(VENV). Next: '. $(BIN)/activate' puts it on the PATH of this shell; 'pipx install .' on that of all.")

$(STAMP): requirements.lock pyproject.toml setup.py $(COMPILED_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python tools/check_compiled.py
	touch $@

demo: setup ## a million orders through three brokers and a Spark pipeline, a leader killed half-way, and the proof; needs Java
	$(BIN)/python -m examples.orders_demo

run: setup ## a broker: a topic, a million records in and out, kill -9, recovery, all there
	$(BIN)/python examples/broker_tour.py

up: setup ## a broker on 127.0.0.1:9092, until Ctrl-C; its data stays in tidelog-data
	$(BIN)/tidelog up

test: setup ## the tests that need nothing but Python
	$(call pytest,not jvm and not long)

test-all: test peers ## and the long ones, and those beside the JVM; BUT=minutes leaves out the longest
	$(call pytest,(jvm or long)$(if $(BUT), and not $(BUT)))

wheel: setup ## dist: a wheel for each Python from 3.11 to 3.13 that is found here
	$(BIN)/python tools/pythons.py wheel

test-pythons: setup ## each of these wheels in a clean environment, and the unit tests on every other Python; TESTS=tests/unit/...
	$(BIN)/python tools/pythons.py test $(TESTS)

SEEDS ?= 0-999
JOBS  ?= 2

search: setup ## simulate SEEDS=0-9999 in JOBS=2 processes; failures go to .cache/search, and a second run goes on
	$(BIN)/tidelog lab sim --seeds $(SEEDS) --jobs $(JOBS) --keep-going --resume --trace .cache/search

check: setup ## ruff, mypy --strict, import-linter, and whether docs/RULES.md and docs/EDGE_CASES.md are true
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tools/check_rules.py
	$(BIN)/python tools/check_rules.py
	$(BIN)/lint-imports --no-cache

conformance: setup peers ## Apache Kafka's own tools and brokers judge what we write; TARGET=tidelog leaves out Kafka's own brokers, and tools built on clients
	$(if $(TARGET),,$(BIN)/python -m peers --tools)
	$(BIN)/python -m pytest tests/conformance $(if $(TARGET),--target $(TARGET) -m "not minutes")

bench: setup peers ## the speed tables, beside the peers
	$(BIN)/python -m bench

peers: setup ## Apache Kafka 3.9.1 and 4.1.0, kcat, franz-go, kafkajs and Spark's Kafka connector
	$(BIN)/python -m peers

lock: setup ## pin anew what pyproject.toml asks for
	$(BIN)/python tools/lock.py

clean: ## remove what the other targets made
	rm -rf $(VENV) .cache build dist src/*.egg-info
	find src -name '*.so' -delete
