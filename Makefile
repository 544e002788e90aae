# SPDX-License-Identifier: Apache-2.0
# The commands of the project; `make help` lists them. Each does its own setup.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SECONDS ?= 600
SHAPES ?= qwen2-114m
OPTIMIZER ?= rode
PRESET ?= cuda
export JOBS

# Configures and builds one preset: $(call build,PRESET)
build = cmake --preset $(1) && cmake --build --preset $(1) --parallel $(JOBS)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install system packages and the pinned Python packages (.venv)
	@tools/setup.sh

.PHONY: build
build: ## build the release command line, build/bin/rode
	@tools/setup.sh --build
	$(call build,release)
	@test -x build/bin/rode

.PHONY: test
test: ## build and run every test
	@tools/setup.sh --peers
	@tools/test.sh ci

# LibTorch comes from .venv.
.PHONY: lab
lab: ## build the command line that trains, build/lab/bin/rode
	@tools/build_lab.sh
	@test -x build/lab/bin/rode

.PHONY: demo
demo: lab ## train a small decoder with four optimizers, three seeds each, and compare them
	@build/lab/bin/rode compare --task tiny-lm --optimizers rode,rode-snr,muon-rms,adamw \
	  --seeds 3 --jobs 2 --threads 1 --out build/demo --overwrite

# AUTO: with CUDA if nvcc is found and the PyTorch in .venv has CUDA.
.PHONY: python
python: build setup ## install the Python package into .venv and run its tests
	@mkdir -p build/reports/python
	@RODE_WITH_CUDA=$${RODE_WITH_CUDA:-AUTO} RODE_BIN=$(CURDIR)/build/bin/rode \
	  tools/test_python.sh build/reports/python/python.xml

# nvcc may be outside PATH: CMake takes it from CUDACXX.
.PHONY: cuda
cuda: ## build with CUDA, build/cuda/bin/rode; PRESET=cuda-all for more chips than H100, H200
	@tools/setup.sh --cuda
	export CUDACXX="$$(tools/find_nvcc.sh)" && $(call build,$(PRESET))
	@test -x build/$(PRESET)/bin/rode

.PHONY: cuda-test
cuda-test: ## build with CUDA and run the C++ tests on the GPU; skipped if there is none
	@tools/setup.sh --cuda
	@tools/test.sh cuda

.PHONY: asan
asan: setup ## run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/test.sh asan

.PHONY: tsan
tsan: setup ## run the C++ tests under ThreadSanitizer
	@tools/test.sh tsan

# The build system does not notice a changed configuration: start from scratch.
build/tidy/.configured: .clang-tidy python/requirements-dev.txt python/requirements-torch.txt
	rm -rf build/tidy
	mkdir -p build/tidy
	touch $@

.PHONY: tidy
tidy: setup build/tidy/.configured ## check library, command line and Python module with clang-tidy
	$(call build,tidy)
	@tools/tidy_cuda.sh

.PHONY: lint
lint: setup ## check include directions, licence lines, file lengths, whitespace and wording
	@for check in check_includes check_files check_words check_lint; do \
	  PYTHONDONTWRITEBYTECODE=1 .venv/bin/python tests/lint/$$check.py; \
	done

.PHONY: format
format: setup ## format the C++ and Python sources
	@tools/format.sh

.PHONY: format-check
format-check: setup ## name the sources that are not formatted
	@tools/format.sh --check

.PHONY: fuzz
fuzz: ## fuzz every target with libFuzzer for SECONDS (600) each; needs clang
	@tools/setup.sh --fuzz
	cmake --preset fuzz -DCMAKE_CXX_COMPILER="$$(tools/find_fuzz_clang.sh)"
	cmake --build --preset fuzz --parallel $(JOBS)
	@tools/fuzz.sh libfuzzer build/fuzz $(SECONDS)

.PHONY: bench
bench: setup ## run the benchmarks; SHAPES and OPTIMIZER choose the step
	$(call build,bench)
	@for program in build/bench/bin/bench_*; do \
	  if [[ -x $$program ]]; then "$$program"; fi; \
	done
	@build/bench/bin/rode bench step --shapes $(SHAPES) --optimizer $(OPTIMIZER)

.PHONY: docs
docs: build setup ## write docs/optimizers and the Python classes from headers and option tables
	@.venv/bin/python tools/optimizer_docs.py
	@.venv/bin/python tools/python_classes.py

.PHONY: install
install: build ## install library, headers and command line under PREFIX (/usr/local)
	cmake --install build/release --prefix "$(PREFIX)"

.PHONY: clean
clean: ## remove every build tree; .venv stays
	rm -rf build
