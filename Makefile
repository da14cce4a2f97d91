# `make` alone says what there is. demo and test install what they need first.
#
#   ARGS='...'   options for hadar demo, docker/demo or pytest
#   SEED=1       which faults a chaos run draws
#   FAULTS=200   how many
#   MINUTES=30   how long the adversary has
#   WORKERS=7    how many processes share the tests; 0 runs them one after another, as --pdb needs
#   YES=1        allow apt-get although this machine has a Slurm configuration

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-clients check fmt lint type golden man chaos adversary docker-demo docker-test docker-chaos clean prepared

BIN := .venv/bin
SEED := 1
FAULTS := 200
MINUTES := 30
# More than cores, since most tests wait for Slurm.
WORKERS := 7
# Else each of thousands of processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
PREPARE := sh .ci/prepare $(if $(YES),--yes)

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done
	@sed -n 's/^#   /  /p' Makefile

demo: ## run one workload on a Slurm of its own, without and with Hadar
	@$(PREPARE) demo
	$(BIN)/hadar demo $(ARGS)

test: prepared ## run the tests that a change has to pass
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS)

test-all: prepared ## run all tests, also those that take long and repeat the most part of others
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-clients: prepared ## run the tests with submitit, snakemake and others, installed for them
	sh .ci/clients
	$(BIN)/python -m pytest tests/clients $(ARGS)

chaos: prepared ## faults of every kind on a local cluster, and what came of them
	PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --faults $(FAULTS) $(ARGS)

adversary: prepared ## one user's jobs while another does all that a user can, as root
	HADAR_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -s tests/adversary/test_soak.py $(ARGS)

docker-demo: ## the same workload as demo, on a Slurm in containers, by four users
	docker/demo $(ARGS)

docker-test: prepared ## run the tests that need the Slurm in containers
	docker/test $(ARGS)

docker-chaos: prepared ## the same as chaos, on the Slurm in containers
	PYTHONPATH=tests $(BIN)/python -m chaos --world docker --seed $(SEED) --faults $(FAULTS) $(ARGS)

check: lint type test ## everything a commit has to pass

fmt: prepared ## put the code in the house's form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lint: prepared ## check form, imports between layers, ways to files of others, spelling and pyproject.toml
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python .ci/lint-files
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

type: prepared ## check types
	$(BIN)/mypy

golden: prepared ## write the golden files anew; review the difference as code
	HADAR_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit tests/properties

man: prepared ## write the manual pages from the commands' own help texts
	$(BIN)/python docs/man/generate.py

clean: ## remove what make, the tests and the demo have made, .venv too
	rm -rf .venv build dist demo-output .coverage .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prepared:
	@$(PREPARE) test
