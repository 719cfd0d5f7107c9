# Everything a developer or a newcomer types. Each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-dashboard test-peers lint bench docs card clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## Make .venv and install the pinned dependencies

# An index with CPU builds of torch saves gigabytes where there is no GPU:
#   make setup PIP_OPTIONS="--extra-index-url https://download.pytorch.org/whl/cpu"
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Draftgate needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --editable . --group dev
	@touch $@

serve: $(STAMP) ## Serve the demo model (or DRAFTGATE_MODEL) on 127.0.0.1:8080
	$(BIN)/draftgate serve

test: lint ## Everything that CI runs
	$(BIN)/draftgate models pull
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not model" -n auto --dist worksteal
	$(BIN)/python -m pytest -m model

test-dashboard: $(STAMP) ## The dashboard in a headless Chromium, which is fetched where there is none
	command -v chromium chromium-browser google-chrome >/dev/null || $(BIN)/python -m playwright install --only-shell chromium
	DRAFTGATE_SCREENSHOTS=.screenshots $(BIN)/python -m pytest tests/dashboard

PEERS := .venv-peers
test-peers: $(STAMP) ## Other people's clients against the gateway, installed in .venv-peers
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PEERS)/bin/python -m pip install --quiet $(PIP_OPTIONS) --group peers
	if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(PEERS) openai@6.49.0; fi
	DRAFTGATE_PEERS=$(PEERS) $(BIN)/python -m pytest tests/clients

lint: $(STAMP) ## Style, types and policies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/draftgate policy validate policies/default.yaml
	$(BIN)/draftgate policy fmt --check policies
	$(BIN)/draftgate policy prove policies/default.yaml

# With options of its own: make bench BENCH_OPTIONS="--temperature 0,0.8 --requests 8"
bench: $(STAMP) ## Measure the engine, in about a quarter of an hour; writes benchmarks/results
	$(BIN)/python -m benchmarks.decoding $(BENCH_OPTIONS)

docs: $(STAMP) ## Build the documentation as a site, in dist/site
	$(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

# The figures of the shipped weights, their contract, and the page about both:
#   make card CARD_ROWS="rows.jsonl" CARD_OPTIONS="--probabilities held_out.npy" CARD_TRAINED="rows.jsonl"
CARD_MISS_RATE ?= 0.045
WEIGHTS := gateway/classification/weights
card: $(STAMP) ## Measure the classifier on CARD_ROWS and write docs/model-card.md
	$(BIN)/draftgate classifier evaluate $(CARD_ROWS) $(CARD_OPTIONS) \
		$(addprefix --trained-on ,$(CARD_TRAINED)) --json > $(WEIGHTS)/evaluation.json.new
	mv $(WEIGHTS)/evaluation.json.new $(WEIGHTS)/evaluation.json
	$(BIN)/draftgate classifier calibrate $(CARD_ROWS) $(CARD_OPTIONS) --keep policies/default.yaml \
		--miss-rate $(CARD_MISS_RATE) --out $(WEIGHTS)/contract.json || test $$? = 1
	$(BIN)/draftgate classifier card --out docs/model-card.md

clean: ## Remove .venv and caches
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
