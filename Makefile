# Every target sets up what it needs: .venv holds the product, .venv-test the product with its tests and their outside truths.

PYTHON :=
MODEL  := models/SmolLM2-135M-Instruct.gguf
DEMO   := out/smollm2
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(THREADS) .venv-test/bin/python -m pytest -n 2

.PHONY: demo test test-all bench lint clean

demo: .venv/ready $(MODEL)
	.venv/bin/anemone convert $(MODEL) -o $(DEMO) --lut-ffn 6 --lut-lmhead 6 --lut-embeddings none
	.venv/bin/anemone generate $(DEMO) --chat --prompt "What is the capital of France?"

test: lint
	$(PYTEST) -m "not slow"

test-all: lint $(MODEL)
	$(PYTEST)

bench: .venv/ready .venv-test/ready
	.venv/bin/python benchmarks/convert.py

lint: .venv-test/ready
	.venv-test/bin/ruff check .
	.venv-test/bin/mypy

clean:
	rm -rf .venv .venv-test out build dist

$(MODEL): | .venv/ready
	.venv/bin/python examples/fetch_smollm2.py $@

.venv/ready: EXTRA :=
.venv-test/ready: EXTRA := [test]
.venv/ready .venv-test/ready: pyproject.toml
	@test -x $(@D)/bin/pip || { \
	for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	  then $$python -m venv $(@D); exit; fi; \
	done; \
	echo "anemone needs Python 3.11, 3.12 or 3.13 and found none; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Installing into $(@D)$(if $(EXTRA), (with torch: one to several GB))"
	@$(@D)/bin/pip install -qq --disable-pip-version-check --editable '.$(EXTRA)'
	@touch $@
