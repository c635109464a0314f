# Two commands matter: `make run` serves, `make test` shows that it works. Both build their own .venv first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# What `test` runs must not stop everybody for a test that fails once: of up to five failed tests, each is run once more,
# alone. One that passes then is named under FLAKY, which is a defect to fix; one that fails again fails the target.
# Nothing else is run again, and nothing in silence.
ONCE_MORE := $(BIN)/python .ci/once_more.py
# Tests wait for servers, disks and clocks more than they compute. A file stays with one process, as servers and Spark do
# (tests/parallel.py); tests/conftest.py says which files come first.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
COMPILED_WORKERS ?= $(WORKERS)

# What the tests of SQS run.
SQS_CLIENTS := $(VENV)/sqs $(VENV)/sqs-query $(VENV)/sqs-node

# The compiled copy comes before the sources; a run that gets the sources all the same is refused by tests/conftest.py.
COMPILED := PYTHONPATH=$(CURDIR)/build/compiled VARIANT=compiled
# The tests of compiled modules. Others are about what is never compiled: the client, the command line, Spark, these files.
SERVED := $(addprefix tests/,api both contract crash embedded engine groups http live model multi_append queues routers \
	sqs storage txns webhooks test_compiled.py)

# The first Python on PATH that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then echo $$p; break; fi; done)

# The wrapper would otherwise complain about newer releases; the pinned wheel says which checker runs.
export PYRIGHT_PYTHON_FORCE_VERSION = $(shell sed -n 's/^pyright==//p' constraints.txt)
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
# Build requirements are pinned like everything else, by either name that pip versions know.
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT = $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Otherwise every worker of every run would compile all tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-compiled test-spark check lint types quick quick-compiled slow spark fast torture soak simulate fuzz mutants real-run flips endurance bench packages console pictures dist site clean

help: ## What can be done here
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '  make %-13s %s\n' "$$name" "$$what"; done

run: $(VENV)/.ready-run ## Serve on 127.0.0.1:4000 with data in ./data (docs/SETTINGS.md: TOPICS_PORT and others change that)
	@compiled="$$($(BIN)/python tools/compiled.py --current)"; exec env $${compiled:+PYTHONPATH="$$compiled"} $(BIN)/topics serve

fast: $(VENV)/.ready-dev ## Compile the hot modules into build/compiled, about a minute; `make run` serves with them until a source changes
	$(BIN)/python tools/compiled.py

# Property tests look at a third of the examples here, and at all of them in `test`.
check: $(VENV)/.ready-dev ## Format, lint, types, layers and the fast tests: under 3 minutes on two cores
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-check} $(MAKE) --no-print-directory --jobs=2 lint quick

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# For mypyc alone, in `test`: pyright checks the same more strictly.
types: $(VENV)/.ready-dev
	$(BIN)/mypy

# Four targets at a time, in this order, the next one as soon as one has ended: half of compiling has one thread, slow
# tests wait for clocks and processes, and what runs beside them has the processor then. Spark takes longest and comes
# first. Slow tests come as soon as compiling is done, because some of them install what it made.
test: $(VENV)/.ready-s3 $(VENV)/declarative $(VENV)/kubernetes-schemas $(VENV)/publish $(VENV)/tracing $(SQS_CLIENTS) $(VENV)/quick-java ## Everything: check, the fast tests compiled, the slow and the crash tests, under 25 minutes on two cores
	@.ci/packages $(PACKAGES)
	@if $(BIN)/python tools/compiled.py --check; then compiled=yes; else compiled=; \
		echo "the compiled variant is not tested" >&2; test "$${CI:-false}" = false; fi; \
	$(MAKE) --no-print-directory --jobs=4 BEFORE_SLOW="$${compiled:+fast}" COMPILED_WORKERS=2 \
		spark $${compiled:+fast} slow quick lint types $${compiled:+quick-compiled}

test-compiled: fast $(VENV)/.ready-s3 $(VENV)/declarative $(VENV)/kubernetes-schemas $(VENV)/publish $(VENV)/tracing $(SQS_CLIENTS) ## Every test with the compiled modules
	@.ci/packages $(PACKAGES)
	@$(COMPILED) $(MAKE) --no-print-directory quick
	@$(COMPILED) $(MAKE) --no-print-directory --jobs=2 slow spark

quick: $(VENV)/.ready-dev
	$(ONCE_MORE) --processes $(WORKERS) -m "not slow and not crash"

# Property tests look for more in `quick`, at the same code before it is compiled.
quick-compiled: fast ## The fast tests of what is compiled, with the compiled modules
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-check} $(COMPILED) $(ONCE_MORE) --processes $(COMPILED_WORKERS) -m "not slow and not crash" $(SERVED)

# They wait most of the time, for clocks, processes and browsers.
slow: $(VENV)/.ready-dev | $(BEFORE_SLOW)
	$(ONCE_MORE) --processes 3 -m "slow or crash" --ignore=tests/spark

# In processes of its own: py4j waits by select(), which knows no file number above 1023, and other tests open more.
# Spark gives a new Python process 10 s to report, and has no setting for that: a busy machine may be slower. A test that
# fails with that message, and with no other, is run again at once.
WORKER_LATE := Python worker (failed )?to connect back
spark: $(VENV)/declarative $(VENV)/notebooks $(VENV)/quick-java
	$(ONCE_MORE) --processes 2 -m "slow or crash" --reruns 2 --only-rerun "$(WORKER_LATE)" tests/spark

# The oldest Spark that is supported, which has Iceberg, and the newest that has Delta; `spark` has the newest of all.
SPARK_OLDEST := 4.1.4
SPARK_DELTA := 4.2.1
# Their py4j leaves sockets to the garbage collector.
OLDER := -m "slow or crash" -W ignore::pytest.PytestUnraisableExceptionWarning --reruns 2 --only-rerun "$(WORKER_LATE)"
test-spark: spark $(VENV)/.ready-s3 $(VENV)/spark-$(SPARK_OLDEST) $(VENV)/spark-$(SPARK_DELTA) ## The tests of Spark with the newest version, the oldest, and the newest that has Delta
	$(VENV)/spark-$(SPARK_OLDEST)/bin/python .ci/once_more.py --processes 2 $(OLDER) --ignore=tests/spark/test_declarative.py tests/spark
	$(VENV)/spark-$(SPARK_DELTA)/bin/python .ci/once_more.py $(OLDER) $(addprefix tests/spark/test_,open_tables.py open_table_kills.py s3a.py stream.py sink.py)

torture: $(VENV)/.ready-dev ## Crash tests with TORTURE times the usual rounds (default 10)
	TOPICS_TORTURE=$${TORTURE:-10} $(PYTEST) -m crash --timeout=3600

soak: $(VENV)/.ready-dev ## Property tests with 50 times the usual examples, other ones at each run
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m "not crash" --timeout=7200

simulate: $(VENV)/.ready-dev ## Search worlds drawn from SEEDS (default 1000, or ranges like 500-599,b0-b99: b with a bucket); SEED=n replays one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --shrink,--seeds $(or $(SEEDS),1000))

flips: $(VENV)/.ready-dev ## Flip every byte of a small data directory, one at a time (FLIP_STEP=n: every n-th)
	FLIP_STEP=$(or $(FLIP_STEP),1) $(PYTEST) -s -m crash -k wanted tests/crash/test_flips.py

endurance: $(VENV)/.ready-dev ## A mixed load for MINUTES (60), and whether memory, files and latency stay flat
	$(BIN)/python -m tests.endurance --minutes $(or $(MINUTES),60)

real-run: $(VENV)/.ready-dev ## The clients and checkers of the simulation on real processes: kills, pauses, full disks, clock steps, for MINUTES (10)
	$(BIN)/python -m tests.real_run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

fuzz: $(VENV)/.ready-fuzz ## Search every reader of foreign bytes for SECONDS_EACH seconds (default 60); FUZZ="http1 log" for some only
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS_EACH),60) $(FUZZ)

mutants: $(VENV)/.ready-dev ## Small faults in the log, the fold and recovery: does a test notice each? (MUTANTS="log" or modules for some only)
	$(BIN)/python -m tests.mutation $(MUTANTS)

bench: $(VENV)/.ready-dev packages $(if $(BENCH),$(if $(filter sqs,$(BENCH)),$(VENV)/sqs),$(VENV)/sqs) ## Measure (BENCH="name ..." for some only); BENCH_WRITE=1 puts cpu and peers into docs/BENCHMARKS.md
	$(BIN)/python -m bench $(BENCH)

# What the slow tests run and pip does not have: a browser, proxies, Prometheus, systemd's checks, namespaces.
PACKAGES := chromium nginx caddy prometheus systemd iproute2 openssl curl

# What `bench peers` compares with; Go, for NATS, is not installed by this.
PEERS := redis-server postgresql

console: ## Build the console from its sources; what is built is committed, so that running needs no Node
	cd console && npm ci --no-audit --no-fund && npm run build

pictures: $(VENV)/.ready-dev ## Take the pictures of docs/CONSOLE.md anew, with Chromium
	CONSOLE_PICTURES=1 $(PYTEST) -m slow tests/console

packages:
	@.ci/packages wrk $(if $(BENCH),$(if $(filter peers,$(BENCH)),$(PEERS)),$(PEERS))

dist: $(VENV)/publish ## Build what is published into dist: sources, a wheel of pure Python and, with a C compiler, a compiled one
	rm -rf dist
	$(BIN)/python tools/dist.py dist
	$(VENV)/publish/bin/twine check --strict dist/*

site: $(VENV)/publish ## Build all pages as a searchable site into build/site, with their links checked
	$(VENV)/publish/bin/python tools/site.py build/site

clean: ## Remove the venv and every cache; ./data stays
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on PATH" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/packages --required python3-venv
	$(PYTHON) -m venv $(VENV)

# The inputs are the stamp's age: a changed dependency or pin installs again, nothing else does.
$(VENV)/.ready-run: pyproject.toml constraints.txt | $(BIN)/python
	TOPICS_PURE=1 $(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(BIN)/python
	TOPICS_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[dev,spark]'
	@touch $(VENV)/.ready-run $@

# Apart from the rest: with cryptography, which twine brings along, other types would be checked.
$(VENV)/publish: constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m venv $@
	$@/bin/python -m pip install --quiet mkdocs-material twine
	@touch $@

# The extra as users install it, and a collector of OpenTelemetry for it to send to.
$(VENV)/tracing: pyproject.toml constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m venv $@
	TOPICS_PURE=1 $@/bin/python -m pip install --quiet --editable '.[tracing]'
	$@/bin/python -m pip install --quiet --pre rotel || test "$${CI:-false}" = false
	@touch $@

# Clients of SQS, unmodified, with versions of their own: of today, of the older query protocol, and for Node.
$(VENV)/sqs: tests/sqs/clients-json.txt | $(VENV)/.ready-dev
$(VENV)/sqs-query: tests/sqs/clients-query.txt | $(VENV)/.ready-dev
$(VENV)/sqs $(VENV)/sqs-query:
	$(BIN)/python -m venv --clear $@
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $@/bin/python -m pip install --quiet --requirement $<
	@touch $@

SQS_NODE := @aws-sdk/client-sqs@3.1164.0
$(VENV)/sqs-node: | $(VENV)/.ready-dev
	mkdir -p $@
	cd $@ && npm install --no-audit --no-fund --silent $(SQS_NODE) || { rm -rf $@; test "$${CI:-false}" = false; }

# Atheris guides the search; where it has no package, inputs are changed at random.
$(VENV)/.ready-fuzz: pyproject.toml constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]' || true
	@touch $@

$(VENV)/quick-java: tests/spark/quick_java.py constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m tests.spark.quick_java $@ 2>/dev/null
	@touch $@

# An S3 server for the tests of buckets, about three minutes once; without Go they are skipped, and fail in CI.
VERSITYGW := v1.8.0
$(VENV)/.ready-s3: | $(VENV)/.ready-dev
	@if command -v go >/dev/null; then GOBIN=$(CURDIR)/$(BIN) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW); \
		else echo "Go is not installed: the tests with an S3 server are skipped" >&2; test "$${CI:-false}" = false; fi
	@touch $@

# A venv with another Spark; everything else is that of the first one, after its own.
$(VENV)/spark-%: constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m venv --clear $@
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($@/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rest.pth
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $@/bin/python -m pip install --quiet --no-deps --ignore-installed pyspark==$* py4j==0.10.9.9
	sed '1s|.*|#!$(CURDIR)/$@/bin/python|' $(BIN)/topics > $@/bin/topics && chmod +x $@/bin/topics
	@touch $@

# What `spark-pipelines` needs lies aside: with pandas among the rest, nothing would show what needs it by mistake.
$(VENV)/declarative: constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $@ \
		googleapis-common-protos grpcio grpcio-status pandas protobuf pytz zstandard
	@touch $@

# Jupyter, which the tests of notebooks run in, and pandas lie aside for the same reason.
$(VENV)/notebooks: constraints.txt | $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --upgrade --target $@ ipykernel nbclient pandas
	@touch $@

# The wheel is read where it is: its 17,000 files would take longer to install than to use.
$(VENV)/kubernetes-schemas: constraints.txt | $(VENV)/.ready-dev
	rm -rf $@
	$(BIN)/python -m pip download --quiet --no-deps --dest $@ kubernetes-validate
	@touch $@
