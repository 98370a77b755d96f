# make demo · make test · make check · make docs · make bench · make soak; each sets up what it needs first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Three processes for two cores: some tests wait. Tests of one file stay together.
WORKERS ?= --numprocesses 3 --dist loadfile
BENCHMARKS := texture opengl layouts precision hierarchical text_shapes cuts motion tile_news void allocate channels encode transport fleet hops pipeline startup busy live pacing until watch answer memory memory_live batching whole_model small_weights outliers peers glance feedback web failover
SOAKS := $(addprefix benchmarks.,soak soak_answers reconnect watch_memory web_memory) $(addprefix tests.soak.,chaos chaos_simulated hostile_client fleet_simulation)

# Run each program in turn. If one fails, go on, and end with the list of those that failed.
run_each = failed=; \
	for name in $(1); do echo "== $$name"; $(BIN)/python -m $$name || failed="$$failed $$name"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# Of a release: an image's name, the build of torch in it, and the tag. Names of images have no capitals.
IMAGE ?= arr-coc-stream
TORCH ?= cpu
TAG ?= local
image_name = $(shell echo "$(IMAGE):$(TAG:v%=%)-$(TORCH)" | tr A-Z a-z)

.PHONY: help demo test test-loaded test-slow test-install check docs screenshots format bench soak clean release-check wheels sdist image image-push

help:
	@echo "make demo         caption a generated clip; results in demo/"
	@echo "make test         run the tests"
	@echo "make test-loaded  run the tests of live sources, stages and processes beside busy loops"
	@echo "make test-slow    run the long suites"
	@echo "make test-install install as the image does, in a folder of its own, and run the cameras of deploy/"
	@echo "make check        format, lint, types"
	@echo "make docs         build the documentation in site/; warnings are errors"
	@echo "make screenshots  take the pictures of the live page in docs/images/; needs Chromium"
	@echo "make format       format the code"
	@echo "make bench        run the benchmarks of benchmarks/README.md; results in benchmarks/results/"
	@echo "make soak         run the long ones: 100000 frames, twice, a camera that comes and goes, processes that die; hours"
	@echo "make wheels       build wheels for release, in containers, and with make sdist the sources; results in dist/"
	@echo "make image        build the image arr-coc-stream:local-cpu; TORCH=cu128 for GPUs"
	@echo "make clean        remove the environment and what the demo made"

demo: $(READY)
	$(BIN)/python run_stream.py demo

test: $(READY)
	$(BIN)/python -m pytest $(WORKERS)

test-loaded: $(READY)
	sh scripts/loaded.sh $(BIN)/python -m pytest -m "concurrent and not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-install: $(READY)
	$(BIN)/python -m pytest -m slow tests/deploy/test_install.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.check_words
	$(BIN)/python -m scripts.habits
	$(BIN)/python -m scripts.check_schemas
	$(BIN)/python -m pytest tests/test_imports.py tests/test_core.py

docs: $(READY)
	$(BIN)/python -m scripts.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: $(READY)
	$(BIN)/python -m scripts.screenshots

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	-$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt scenedetect imagezmq vidgear
	-$(BIN)/python -m pip install --quiet --constraint constraints.txt colorlog requests simplejpeg tqdm
	@$(call run_each,$(addprefix benchmarks.,$(BENCHMARKS)))

soak: $(READY)
	@$(call run_each,$(SOAKS))

# TAG=v0.1.0 for a release; the version and the changelog alone without it.
release-check:
	TAG="$(filter-out local,$(TAG))" $(PYTHON) scripts/check_release.py

# Tools of a release are in environments of their own: it needs nothing of the tests'.
wheels:
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet cibuildwheel==4.3.5
	build/tools/bin/cibuildwheel --output-dir dist

sdist:
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet build==1.6.1
	build/tools/bin/python -m build --sdist --outdir dist

image:
	docker build -f deploy/Dockerfile -t $(image_name) --build-arg TORCH=$(TORCH) .

image-push: image
	docker push $(image_name)

clean:
	[ ! -f "$(VENV)/pyvenv.cfg" ] || rm -rf "$(VENV)"
	[ ! -f demo/.arr-coc-demo ] || rm -f demo/captions.vtt demo/captions.vtt.resume demo/captions.jsonl demo/summary.json demo/heatmap.mp4 demo/.arr-coc-demo
	[ ! -f site/objects.inv ] || rm -rf site
	[ ! -d demo ] || rmdir demo 2>/dev/null || echo "demo/ holds other files, and stays"

$(READY): pyproject.toml setup.py constraints.txt scripts/setup.sh kernels/tiles.cpp kernels/tiles.h kernels/scores.cpp kernels/scores.h kernels/maps.h kernels/motion.cpp kernels/motion.h kernels/linear.cpp kernels/linear.h kernels/linear_amx.h kernels/amx.h kernels/attention.cpp kernels/attention_amx.h
	PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup.sh
	@touch $@
