# Two commands on a fresh machine with Python 3.11 or newer, make and git: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
PIP := $(BIN)/python $(PIP_INSTALL) --constraint constraints.txt
DIGITS := $(BIN)/python examples/digits.py
FAKE_XPU := builtin_plugins/accelkit-fake-xpu
TORCH ?= 2.13.0
WORKERS ?= 2
PARTS_OF_TESTS := $(addprefix test-,distributed security bridges bridges-oldest docs conformance packaging zoo precisions clusters xla torch-oldest torch-newest lower-bounds)

.PHONY: help demo check lint types structure audit docs run-test-docs run-protected-conformance run-conformance-of-bridges coverage soak soak-torches soak-bridges-oldest snapshots bench precisions gpu gpu-wheels conformance conformance-kinds conformance-xla support-matrix devices lists selftest asan clean compiler cluster-parts test test-all \
	$(PARTS_OF_TESTS) $(addprefix setup-,check demo test $(PARTS_OF_TESTS))

help:
	@$(PYTHON) -c "import tomllib" 2>/dev/null && $(PYTHON) tests/suite_parts.py || echo "tests/parts.toml lists the parts of the tests ($(PYTHON) is older than 3.11 and cannot show them)"
	@echo "make test T=PATH         run one file, folder or test: make test T=tests/runtime/test_loop.py::test_x"
	@echo "make test-all            run every part and print a table of their times; .ci/run does this in a clean clone"
	@echo "make coverage            list the lines of sdk/ that make test does not run; PARTS=\"test test-distributed\": other parts"
	@echo "make demo                train a digit classifier on the device that auto selects, and on a plugin that is installed from a wheel"
	@echo "make soak                the long tests: saving is killed at every write, accelkit new is run with every combination of answers"
	@echo "make snapshots           rewrite the snapshot of all error texts: tests/error_texts/error_texts.ambr"
	@echo "make cluster-parts       install what the tests of schedulers run: SLURM, Open MPI, MPICH, Ray, DeepSpeed (as root or with sudo)"
	@echo "make docs                build the documentation site: build/docs/html"
	@echo "make bench               measure steps, start-up, checkpoints and memory against the raw loop and the peers: benchmarks/results"
	@echo "make precisions          train in every precision, and write the table of docs/precisions.md"
	@echo "make gpu                 run conformance, precisions and benchmarks on CUDA within 9 minutes, without a package index: OUT=build/gpu"
	@echo "make gpu-wheels          collect the wheels that make gpu installs beside the machine's own torch: build/gpu-wheels"
	@echo "make conformance         certify cpu and fake_xpu with every test (10 minutes)"
	@echo "make selftest            prove that the conformance suite finds broken plugins (some hours)"
	@echo "make asan                run the C++ backend of the template with the address sanitizer"
	@echo "make conformance-kinds   certify the built-in plugins of the other kinds that need no hardware, and the hook plugin of accelkit new (15 minutes)"
	@echo "make support-matrix      write docs/support-matrix.md from the reports of make conformance, conformance-kinds and conformance-xla"
	@echo "make devices             run conformance on devices that others publish, and write docs/published-devices.md (NAMES=rgpu: only this one)"
	@echo "make lists               rewrite the conformance suite's list of tests for every torch (in environments that are made and removed, 6 GB)"
	@echo "make clean               remove what the other targets created"

demo: setup-demo
	@echo; echo "== The accelerator that auto chooses, and why"
	$(BIN)/accelkit why
	@echo; echo "== Digits on it"
	$(DIGITS)
	@echo; echo "== A vendor's plugin, installed from a wheel of its own: a PyTorch device without the hardware"
	$(BIN)/accelkit list --kind accelerator
	@echo; echo "== Digits on it, selected by name"
	$(DIGITS) --accelerator fake_xpu
	@echo; echo "== Proof that it works: the conformance suite, and its report"
	$(BIN)/accelkit conformance run fake_xpu --profile smoke --html build/conformance/fake_xpu.html

# Some tests wait for a time-out, or for a process that hangs, and use no core meanwhile.
PYTEST_WORKERS = $(shell expr $(WORKERS) + 1)

# The parts of the tests: tests/parts.toml says which test belongs to which, and how long each may take. `make test T=PATH` runs what T names.
PYTEST = -m pytest -n $(PYTEST_WORKERS) --dist loadgroup -m "not soak"
JUNIT = --junit-xml build/tests/$@.xml
PART = $(if $(T),-m pytest $(T),$(PYTEST) --part $@ $(JUNIT) tests --ignore=tests/xla)

check: setup-check
	$(MAKE) -j2 lint types structure audit

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-check
	$(BIN)/mypy

# What is known to be vulnerable among the packages that are installed here. Ruff's rules S, of bandit, are part of lint.
audit: $(VENV)/.ready
	$(BIN)/python tests/audit.py

structure: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/structure tests/docs/test_text_width.py tests/docs/test_links.py --junit-xml build/tests/check.xml

# The fake XPU's own tests run with device memory closed outside kernels and copies here, and open with the oldest and the newest torch.
test: setup-test
	$(BIN)/python $(PART)
ifndef T
	FAKE_XPU_PROTECT=1 $(BIN)/python $(PYTEST) $(FAKE_XPU)/tests --junit-xml build/tests/$@.fake_xpu.xml
endif

test-distributed: setup-test-distributed
	$(BIN)/python $(PART)

test-security: setup-test-security
	$(BIN)/python $(PART)

test-bridges: setup-test-bridges
	$(BIN)/python $(PART)

# The site is built with every warning an error: a reference that leads nowhere, a page in no table of contents. Nothing is fetched. Sphinx uses one core:
# the tests run beside it.
test-docs: setup-test-docs
	$(MAKE) -j2 docs run-test-docs

run-test-docs: setup-test-docs
	$(BIN)/python $(subst run-test-docs,test-docs,$(PART))

test-packaging: setup-test-packaging
	$(BIN)/python $(PART)

test-zoo: setup-test-zoo
	$(BIN)/python $(PART)

test-precisions: setup-test-precisions
	FORBID_SKIPS=torchao,bitsandbytes $(BIN)/python $(PART)

# Lightning and Accelerate as old as is supported, in an environment in which the first one's packages are seen too. Lightning's two packages are the
# same code under two names: test-bridges tries both. What is marked newest_peers does not call what differs between versions; `make soak` runs it too.
OLDEST_PEERS := build/oldest-peers
PYTEST_OLDEST_PEERS = $(PYTEST) tests/bridges -k "not pytorch_lightning"
test-bridges-oldest: setup-test-bridges-oldest
	$(OLDEST_PEERS)/bin/python $(PYTEST_OLDEST_PEERS) -m "not soak and not newest_peers" $(JUNIT)

soak-bridges-oldest: setup-test-bridges-oldest
	$(OLDEST_PEERS)/bin/python $(PYTEST_OLDEST_PEERS) -m "soak or newest_peers"

$(OLDEST_PEERS)/.ready: $(VENV)/.peers $(VENV)/.fake_xpu
	$(call overlay,$(OLDEST_PEERS))
	$(OLDEST_PEERS)/bin/python $(PIP_INSTALL) --no-deps --ignore-installed \
		lightning==2.5.0 pytorch_lightning==2.5.0 lightning_fabric==2.5.0 accelerate==1.10.0
	$(OLDEST_PEERS)/bin/python $(PIP_INSTALL) mlflow-skinny==3.17.2 'importlib-metadata<10'
	@touch $@

# What pyproject.toml allows, as old as it may be, and pytest with no plugin that it does not need.
OLDEST_DEPENDENCIES := build/oldest-dependencies
LOWER_BOUNDS := tests/discovery tests/selection/test_other_names.py tests/test_plugin_manager.py tests/cli tests/checkpoint/test_exporting.py tests/conformance \
	tests/launching/test_launch.py tests/template/test_answers.py
THEY_USE_A_DEVICE := runs lacking_dtypes oracle profiles conditions generated_mutants crashes device_choice unusual_devices precision_suite strategy_suite \
	cluster_suite device_loss next
test-lower-bounds: setup-test-lower-bounds
	$(OLDEST_DEPENDENCIES)/bin/python tests/lower_bounds.py --check conformance template
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(OLDEST_DEPENDENCIES)/bin/python -m pytest -p pytest_timeout -p xdist.plugin -p syrupy -n $(PYTEST_WORKERS) --dist loadgroup \
		$(LOWER_BOUNDS) $(addprefix --ignore tests/,discovery/test_probing.py cli/test_killed_commands.py) $(addprefix --ignore tests/conformance/test_,$(addsuffix .py,$(THEY_USE_A_DEVICE))) -m "not soak" \
		-k "not (doctor or whatever or remembered or jobs or numbering or without_accelkit or torch_refuses or nosuchthing or device_type_of_torchs)" $(JUNIT)

$(OLDEST_DEPENDENCIES)/.ready: pyproject.toml $(FAKE_XPU)/pyproject.toml tests/lower_bounds.py $(VENV)/.fake_xpu
	$(call overlay,$(OLDEST_DEPENDENCIES))
	$(OLDEST_DEPENDENCIES)/bin/python $(PIP_INSTALL) --no-deps --ignore-installed \
		$$($(BIN)/python tests/lower_bounds.py conformance template)
	@touch $@

# torch_xla needs a torch of its own, which is also the oldest that is supported. Each test of the conformance suite is a program that XLA compiles
# for one run: it need not optimise.
OLDEST_VENV := .venv-torch-oldest
ON_XLA := PJRT_DEVICE=CPU
test-xla: setup-test-xla
	$(OLDEST_VENV)/bin/python $(PYTEST) tests/xla $(JUNIT)
	$(CONFORMANCE_OF_XLA) --profile smoke --junit build/tests/$@.conformance.xml

CONFORMANCE_OF_XLA = $(ON_XLA) XLA_FLAGS=--xla_backend_optimization_level=0 $(OLDEST_VENV)/bin/accelkit conformance run xla -n $(WORKERS)
conformance-xla: setup-test-xla
	$(CONFORMANCE_OF_XLA) --profile distributed --json build/conformance/xla.json --html build/conformance/xla.html

# With another torch: the fake XPU, which is compiled against it, with the oldest; what calls torch, and conformance, with the newest. Conformance with the
# oldest is run on XLA. Selection, the command line and the template import no torch. `make soak` runs each with both.
TORCH_TESTS := tests/runtime tests/checkpoint tests/device $(addprefix --ignore tests/checkpoint/test_,distributed_checkpoint.py killed_saves.py durability.py) \
	$(addprefix --ignore tests/runtime/test_,transformer_engine.py arguments.py)
FAKE_XPU_TESTS = $(PYTEST) $(FAKE_XPU)/tests --junit-xml build/tests/$@.fake_xpu.xml
PROFILE_ON_TORCH ?= smoke
CONFORMANCE_ON_TORCH = accelkit conformance run fake_xpu --profile $(PROFILE_ON_TORCH) -n $(WORKERS) --junit build/tests/$@.conformance.xml

test-torch-oldest: setup-test-torch-oldest
	$(OLDEST_VENV)/bin/python $(FAKE_XPU_TESTS)

NEWEST_VENV := .venv-torch-newest
test-torch-newest: setup-test-torch-newest
	$(NEWEST_VENV)/bin/python $(PYTEST) $(TORCH_TESTS) $(JUNIT)
	$(NEWEST_VENV)/bin/python $(PYTEST) tests/distributed/test_strategies.py -k gradients_and_weights --junit-xml build/tests/$@.distributed.xml
	$(NEWEST_VENV)/bin/$(CONFORMANCE_ON_TORCH)

soak-torches: PROFILE_ON_TORCH := training
soak-torches: test-torch-oldest test-torch-newest
	$(OLDEST_VENV)/bin/$(CONFORMANCE_ON_TORCH)
	$(NEWEST_VENV)/bin/python $(FAKE_XPU_TESTS)

# The fake XPU is compiled here, once for each torch: `make test-all` sets these up beside other parts.
setup-test-xla setup-test-torch-oldest: compiler
	$(MAKE) VENV=$(OLDEST_VENV) TORCH=2.9.1 $(OLDEST_VENV)/.torch_xla $(OLDEST_VENV)/.fake_xpu
	$(OLDEST_VENV)/bin/accelkit probe fake_xpu
setup-test-torch-newest: compiler
	$(MAKE) VENV=$(NEWEST_VENV) TORCH=2.15.0 $(NEWEST_VENV)/.fake_xpu $(NEWEST_VENV)/.precisions
	$(NEWEST_VENV)/bin/accelkit probe fake_xpu
setup-test-lower-bounds: compiler $(OLDEST_DEPENDENCIES)/.ready
setup-test-bridges-oldest: compiler $(OLDEST_PEERS)/.ready

# An environment in which the packages of the first one are seen too.
define overlay
	$(BIN)/python -m venv --clear $(1)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
endef

$(VENV)/.torch_xla: $(VENV)/.ready
	$(PIP) torch_xla accelerate
	@touch $@

test-clusters: setup-test-clusters
	FORBID_SKIPS=slurm,openmpi,mpich,ray,deepspeed $(BIN)/python $(PART)

# The fake XPU with device memory closed outside kernels and copies, certified with all but the full profile's operators.
# The two runs of the suite overlap: at its start and its end, each has fewer tests than there are cores.
test-conformance: setup-test-conformance
	$(BIN)/python $(PART)
	$(MAKE) -j2 run-protected-conformance run-conformance-of-bridges

run-protected-conformance: setup-test-conformance
	FAKE_XPU_PROTECT=1 $(MAKE) conformance SUBJECTS=fake_xpu PROFILE=distributed BENCHMARKS=

run-conformance-of-bridges: setup-test-conformance
	$(BIN)/accelkit conformance run fake_xpu --profile full --select bridges -n 1 --junit build/tests/test-conformance.bridges.xml

setup-check: $(VENV)/.fake_xpu $(VENV)/.peers
setup-demo: compiler $(VENV)/.fake_xpu
setup-test setup-test-distributed setup-test-security setup-test-conformance setup-test-zoo: compiler $(VENV)/.fake_xpu $(VENV)/.peers
setup-test-bridges: compiler $(VENV)/.fake_xpu $(VENV)/.peers
setup-test-docs: compiler $(VENV)/.fake_xpu $(VENV)/.peers $(VENV)/.docs $(VENV)/.plots
setup-test-packaging: compiler $(VENV)/.fake_xpu $(VENV)/.peers $(VENV)/.plots
setup-test-precisions: compiler $(VENV)/.fake_xpu $(VENV)/.peers $(VENV)/.precisions
setup-test-clusters: compiler $(VENV)/.fake_xpu cluster-parts

test-all: $(VENV)/.ready
	$(BIN)/python tests/run_parts.py $(PARTS_OPTIONS)

soak: $(VENV)/.ready compiler conformance-xla soak-torches soak-bridges-oldest selftest
	$(BIN)/python -m pytest -n $(WORKERS) -m soak -s tests --ignore=tests/xla
	$(BIN)/python -m pytest -m soak $(FAKE_XPU)/tests

# The parts that PARTS names, or the tests that T names, with every process of this environment measured by coverage.py; then the lines of sdk/ that none
# of them ran. A process that is killed reports nothing. The table comes also after a failed test; the exit code is 1 then.
PARTS ?= test
COVERAGE := $(CURDIR)/build/coverage
coverage: $(addprefix setup-,$(PARTS)) $(VENV)/.coverage
	rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)
	COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_SOURCE=$(CURDIR)/sdk/accelkit COVERAGE_FILE=$(COVERAGE)/data $(MAKE) --keep-going $(PARTS) || touch $(COVERAGE)/failed
	$(BIN)/coverage combine --quiet --data-file $(COVERAGE)/data
	$(BIN)/coverage report --data-file $(COVERAGE)/data --show-missing
	@test ! -e $(COVERAGE)/failed || { echo "coverage: a test failed"; exit 1; }

# Writes the texts of all errors anew; a reviewer reads the difference. In one process, which sees every test.
snapshots: setup-test setup-test-precisions
	for tests in $(or $(T),"tests --ignore=tests/xla" $(FAKE_XPU)/tests); do $(BIN)/python -m pytest -q -n0 -m "syrupy_snapshot and not soak" --snapshot-update $$tests || exit 1; done

docs: $(VENV)/.peers $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs/html
	@echo "build/docs/html/index.html"

bench: $(VENV)/.peers $(VENV)/.fake_xpu $(VENV)/.plots
	$(BIN)/python benchmarks/everything.py --output benchmarks/results/cpu

precisions: $(VENV)/.fake_xpu $(VENV)/.precisions
	$(BIN)/python benchmarks/precisions.py --accelerator cpu --accelerator fake_xpu --write docs/precisions.md
	$(MAKE) setup-test-xla
	$(ON_XLA) $(OLDEST_VENV)/bin/python benchmarks/precisions.py --accelerator xla --table precisions-xla --write docs/precisions.md

# On a machine with torch for CUDA and no package index; PYTHON is the one that has torch. Try it elsewhere: make gpu ACCELERATOR=cpu GPU_OPTIONS=--quick
OUT ?= build/gpu
GPU_WHEELS ?= build/gpu-wheels
GPU_PYTHON_VERSION ?= 3.12
ACCELERATOR ?= cuda
gpu:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpu: accelkit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) benchmarks/gpu.py --accelerator $(ACCELERATOR) --wheels $(GPU_WHEELS) --output $(OUT) $(GPU_OPTIONS)

# Where there is a package index. The versions are those that this environment is tested with.
gpu-wheels: $(VENV)/.peers $(VENV)/.precisions
	$(PIP) nvidia-ml-py
	$(BIN)/python benchmarks/gpu_wheels.py --python $(GPU_PYTHON_VERSION) --output $(GPU_WHEELS)

# Every test on each, and what a vendor may declare; reports in build/conformance.
SUBJECTS ?= cpu fake_xpu
PROFILE ?= full
BENCHMARKS ?= --benchmarks
conformance: compiler $(VENV)/.fake_xpu
	for name in $(SUBJECTS); do \
		$(BIN)/accelkit conformance run $$name --profile $(PROFILE) --certify -n $(WORKERS) $(BENCHMARKS) --json build/conformance/$$name.json \
			--html build/conformance/$$name.html --junit build/conformance/$$name.xml --badge build/conformance/$$name.svg \
			--bundle build/conformance/$$name.tar && $(BIN)/accelkit conformance verify build/conformance/$$name.tar || exit 1; \
	done
	$(BIN)/accelkit conformance matrix build/conformance --html build/conformance/matrix.html

# The built-in plugins of the other kinds that compute on the CPU. Plugins of different kinds may have the same name.
OTHER_KINDS ?= $(addprefix precision-,32-true 64-true 16-true bf16-true 16-mixed bf16-mixed fp8 bitsandbytes-8bit bitsandbytes-4bit) \
	$(addprefix strategy-,single_device ddp fsdp parallel deepspeed) $(addprefix cluster-,local slurm torchelastic mpi ray lsf kubeflow xla)
# accelkit has no hook plugin of its own: the one in a package that `accelkit new` makes is tested.
HOOK_PLUGIN := build/hook-plugin
conformance-kinds: compiler $(VENV)/.fake_xpu $(VENV)/.precisions $(VENV)/.deepspeed
	for one in $(OTHER_KINDS); do \
		case $$one in strategy-deepspeed) on="--on cpu";; *) on=;; esac; \
		$(BIN)/accelkit conformance run $${one#*-} --kind $${one%%-*} $$on --profile $(PROFILE) --certify -n $(WORKERS) --json build/conformance/$$one.json || exit 1; \
	done
	rm -rf $(HOOK_PLUGIN)
	$(BIN)/accelkit new --no-input --output-dir $(HOOK_PLUGIN) components=hooks
	$(PIP) --no-deps --no-build-isolation --target $(HOOK_PLUGIN)/site $(HOOK_PLUGIN)/accelkit-acme
	PYTHONPATH=$(HOOK_PLUGIN)/site $(BIN)/accelkit conformance run acme_hooks --kind hooks \
		--profile $(PROFILE) --certify -n $(WORKERS) --json build/conformance/hooks-acme_hooks.json

# What was not run again keeps the summary that it has.
support-matrix: $(VENV)/.ready
	if ls build/conformance/*.json >/dev/null 2>&1; then $(BIN)/accelkit conformance matrix build/conformance --summaries docs/support-matrix; fi
	$(BIN)/accelkit conformance matrix docs/support-matrix --write docs/support-matrix.md

# Devices that others publish, each in an environment of its own. Their packages are downloaded: this is not part of the tests.
NAMES ?=
devices: $(VENV)/.ready
	$(BIN)/python examples/published-devices/run.py $(NAMES)

# The frozen list of tests for each torch: after a change of the checks, and for a new torch. An environment at a time, 6 GB.
TORCHES := 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
lists:
	for torch in $(TORCHES); do \
		$(MAKE) VENV=build/torch-$$torch TORCH=$$torch build/torch-$$torch/.ready && \
		build/torch-$$torch/bin/python -m accelkit_conformance.freeze_profiles && rm -rf build/torch-$$torch || exit 1; \
	done

# The package that `accelkit new` makes with a C++ backend, compiled with the address sanitizer, which must be loaded before Python.
ASAN := build/asan
IN_ASAN := PYTHONPATH=$(CURDIR)/$(ASAN)/site ACME_CACHE_DIR=$(CURDIR)/$(ASAN)/cache ACME_CXXFLAGS="-g -fsanitize=address"
asan: compiler $(VENV)/.ready
	rm -rf $(ASAN)
	$(BIN)/accelkit new --no-input --output-dir $(ASAN) components=accelerator,backend
	$(PIP) --no-deps --no-build-isolation --target $(ASAN)/site $(ASAN)/accelkit-acme
	$(IN_ASAN) $(BIN)/python -c "from accelkit_acme.build import LIBRARY; LIBRARY.build()"
	$(IN_ASAN) LD_PRELOAD=$$(c++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m pytest -q -p no:cacheprovider $(ASAN)/accelkit-acme/tests/test_backend.py

GENERATED ?= 200
SEED ?= 0
selftest: compiler $(VENV)/.fake_xpu
	mkdir -p build/conformance
	$(BIN)/accelkit conformance selftest -n $(WORKERS) --own-area --until-killed --output build/conformance/selftest.kills
	$(BIN)/accelkit conformance selftest -n $(WORKERS) --generated $(GENERATED) --seed $(SEED) --output build/conformance/selftest-generated.kills

# What the tests marked slurm, openmpi, mpich, ray and deepspeed run. MPICH and Ray get an environment of their own, in which the first one's packages
# are seen too: MPICH's mpirun would hide Open MPI's, and Ray brings a lot. Where nobody may install servers, their tests are skipped and say so.
CLUSTER_PARTS := build/cluster-parts
ROOT_COMMAND := $(if $(filter 0,$(shell id -u)),,sudo)
cluster-parts: $(CLUSTER_PARTS)/.ready $(VENV)/.deepspeed
	@PATH="$$PATH:/usr/sbin"; for program in slurmctld slurmd munged mpirun mpicc; do command -v $$program >/dev/null || missing=1; done; \
	if [ "$$missing" ]; then $(ROOT_COMMAND) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(ROOT_COMMAND) apt-get install -y -qq \
		--no-install-recommends slurmctld slurmd slurm-client munge openmpi-bin libopenmpi-dev || \
		echo "SLURM and Open MPI could not be installed: their tests will be skipped"; fi

$(CLUSTER_PARTS)/.ready: $(VENV)/.ready
	$(call overlay,$(CLUSTER_PARTS))
	$(CLUSTER_PARTS)/bin/python $(PIP_INSTALL) --constraint constraints.txt mpich mpi4py ray
	@touch $@

$(VENV)/.deepspeed: $(VENV)/.ready
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(PIP) --no-build-isolation deepspeed
	@touch $@

$(VENV)/.coverage: $(VENV)/.ready
	$(PIP) coverage
	@touch $@

# What the tests marked torchao and bitsandbytes compute with.
$(VENV)/.precisions: $(VENV)/.ready
	$(PIP) torchao bitsandbytes
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt tests/short_processes.pth
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "accelkit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$(TORCH)
	$(PIP) hatchling editables build twine ruff mypy types-psutil scikit-learn pytest-timeout pytest-xdist syrupy hypothesis jsonschema prometheus-client scipy cruft pip-audit
	$(PIP) --no-build-isolation --editable '.[conformance,template]'
	cp tests/short_processes.pth "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

# As a user gets it: a wheel, which compiles itself on first use.
$(VENV)/.fake_xpu: $(VENV)/.ready $(FAKE_XPU)/pyproject.toml $(shell find $(FAKE_XPU)/src -name '*.py' -o -name '*.cpp' -o -name '*.h')
	rm -rf build/wheels/$(VENV)
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels/$(VENV) $(FAKE_XPU)
	$(PIP) --force-reinstall --no-deps build/wheels/$(VENV)/accelkit_fake_xpu-*.whl
	$(PIP) build/wheels/$(VENV)/accelkit_fake_xpu-*.whl
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	$(PIP) lightning pytorch_lightning 'jsonargparse[signatures]' accelerate transformers tensorboard
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(PIP) sphinx myst-parser furo sphinx-design
	@touch $@

$(VENV)/.plots: $(VENV)/.ready
	$(PIP) matplotlib
	@touch $@

compiler:
	@command -v cc >/dev/null && command -v c++ >/dev/null || { echo "Some tests compile C and C++, and there is no compiler. On Debian or Ubuntu: apt-get install build-essential. On Fedora: dnf install gcc gcc-c++. On macOS: xcode-select --install"; exit 1; }

clean:
	rm -rf $(VENV) $(OLDEST_VENV) $(NEWEST_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
