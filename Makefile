# make demo    the main job, end to end, on what is at hand: the bundled sample, and a small zoo trained on real digits
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
	@echo "1. The bundled sample: transformers trained on images, news and Shakespeare. What it holds:"
	$(RUN) -m zoo.describe small-transformer-zoo --plots demo/plots
	@echo "2. A fitted predictor ranks checkpoints that it has not seen by their weights alone, beside what was measured:"
	$(RUN) -m benchmarks.predict small-transformer-zoo --config mnist --top 5
	@echo "3. A zoo of your own: 32 transformers learn digits of 8 x 8 pixels (examples/digits.toml)."
	$(RUN) -m generation.run --task examples/digits.toml --shard 0 --out demo/runs
	$(RUN) -m zoo.publish demo/runs demo/zoo --splits 60/20/20
	@echo "4. Its hashes, splits and rows are checked, and eight accuracies are measured again from the weights:"
	$(RUN) -m zoo.verify demo/zoo --evaluate 8 --data examples
	@echo "5. Two predictors are fitted to it, one on hyperparameters and one on weights. Which one ranks the runs better?"
	$(RUN) -m benchmarks.kendall --zoo demo/zoo --folds 5 --quick --models hyperparameters gauge_nfn --out demo/results
	@echo "6. The same zoo as a page for a browser:"
	$(RUN) -m zoo.page demo/zoo demo/page --data examples
	@echo "Look at demo/page/index.html, demo/results and demo/plots."

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
