# `make` alone lists the targets. demo and test install what they need first.
#
#   ARGS='...'   options for hadar demo, hadar site, docker/demo or pytest
#   SEED=1       the seed of the faults of a chaos run
#   FAULTS=200   their number
#   MINUTES=30   duration of the adversary test
#   WORKERS=7    processes that run the tests; 0 runs them one after another, as --pdb needs
#   YES=1        allow apt-get although this machine has a Slurm configuration

.DEFAULT_GOAL := help
.PHONY: help demo site test test-all test-clients check fmt lint type golden man runtime-wheel chaos adversary docker-demo docker-test docker-chaos clean prepared

BIN := .venv/bin
SEED := 1
FAULTS := 200
MINUTES := 30
# More than there are cores, since most tests wait for Slurm.
WORKERS := 7
# Otherwise each of thousands of processes compiles its imports.
unexport PYTHONDONTWRITEBYTECODE
PREPARE := sh .ci/prepare $(if $(YES),--yes)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done
	@sed -n 's/^#   /  /p' Makefile

demo: ## run one workload on a separate Slurm, without and with Hadar
	@$(PREPARE) demo
	$(BIN)/hadar demo $(ARGS)

site: prepared ## measure waits on a shared Slurm, with Hadar and without; as root, some minutes
	$(BIN)/hadar site $(ARGS)

test: prepared ## run the tests that a change has to pass
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS)

test-all: prepared ## run all tests, also slow ones that mostly repeat other tests
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-clients: prepared ## install submitit, snakemake and other clients, and run their tests
	sh .ci/clients
	$(BIN)/python -m pytest tests/clients $(ARGS)

chaos: prepared ## inject faults of every kind on a local cluster, and report the effects
	PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --faults $(FAULTS) $(ARGS)

adversary: prepared ## one user's jobs beside another user who does all that a user can; as root
	HADAR_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -s tests/adversary/test_soak.py $(ARGS)

docker-demo: ## the workload of demo on a Slurm in containers, by four users
	docker/demo $(ARGS)

docker-test: prepared ## run the tests that need the Slurm in containers
	docker/test $(ARGS)

docker-chaos: prepared ## chaos on the Slurm in containers
	PYTHONPATH=tests $(BIN)/python -m chaos --world docker --seed $(SEED) --faults $(FAULTS) $(ARGS)

check: lint type test ## all that a commit has to pass

fmt: prepared ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lint: prepared ## check formatting, imports between layers, access to users' files, spelling and pyproject.toml
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python .ci/lint-files
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

type: prepared ## check types, with torch where it is installed, and as without it
	$(BIN)/mypy
	MYPYPATH=.ci/without-torch $(BIN)/mypy --cache-dir .mypy_cache/without-torch

golden: prepared ## regenerate the golden files; review the difference as code
	HADAR_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit tests/properties

runtime-wheel: prepared ## build the wheel hadar-runtime, for trainings, in dist
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist packaging/runtime

man: prepared ## write the manual pages from the commands' own help texts
	$(BIN)/python docs/man/generate.py

clean: ## remove the files of make, tests and demo, and .venv
	rm -rf .venv build dist demo-output site-output .coverage .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prepared:
	@$(PREPARE) test
