# What a developer runs now and then: mutants, sanitizers, fuzzing, other machines and TensorFlows, Bazel, releases.
# Included by the Makefile, whose variables it uses.

.PHONY: bitwise-against bench-against networks suites mutants sanitize sanitize-core sanitize-threads fuzz fuzz-run matrix aarch64-parts \
  aarch64-test wheels wheel-conformance test-wheel release release-check bazel

bitwise-against: all  ## Compare every output bit by bit with another commit: REF=<commit>; ARGS="--cases=500"
	$(Q)'$(PYTHON)' tools/bitwise_against.py --ref='$(or $(REF),HEAD)' $(ARGS)

# LIB: the core library of another build, for instance of another commit.
bench-against: $(LIB_DIR)/libtf_bn_ops_core.so  ## Measure this tree's core library against another build's: LIB=/path/to/libtf_bn_ops_core.so
	$(Q)[ -n '$(LIB)' ] || { echo "error: make bench-against needs LIB=/path/to/libtf_bn_ops_core.so, the library to compare with." >&2; exit 1; }
	$(Q)'$(PYTHON)' tools/bench/bench_command.py --against='$(LIB)' $(ARGS)

networks: all  ## Train whole networks by Keras and by this library, an hour: ARGS="ResNet50", or --record for the table of docs/evidence.md
	$(Q)'$(PYTHON)' tools/train_networks.py $(ARGS)

suites: all  ## Run Keras' own tests under TF_BN_OPS=1 and without, an hour: ARGS="models", or --record for the table of docs/evidence.md
	$(Q)'$(PYTHON)' tools/suites.py $(ARGS)

mutants: $(PYTHON_READY)  ## Check that the conformance run catches every wrong kernel of tests/mutants; ARGS="NAME ..."
	$(Q)'$(PYTHON)' tests/mutants/run.py $(ARGS)

aarch64-parts: $(PYTHON_READY)  ## Fetch what make ARCH=aarch64 needs: compiler, emulator, a Python with TensorFlow; by apt-get and pip
	$(Q)'$(PYTHON)' tools/fetch_aarch64_parts.py $(AARCH64_PARTS)

# The compiler and the Python of this machine are not those of the other.
aarch64-test: all  ## Build for aarch64 and run tests/aarch64 under the emulator, half an hour; skipped without make aarch64-parts
	$(Q)$(call need,pytest)
	+$(Q)[ ! -e $(AARCH64_PARTS)/bin/python ] || $(MAKE) --no-print-directory ARCH=aarch64 CXX='$(AARCH64_CXX)' \
	  PYTHON=$(AARCH64_PARTS)/bin/python GPU= all
	$(Q)'$(PYTHON)' -m pytest -m 'not large' tests/aarch64 $(ARGS)

# Each source in tests/fuzz is a program, linked with a fuzzing engine (make fuzz) or with replay.cc (make sanitize).
FUZZ_OBJECTS := $(patsubst %.cc,$(B)/%.o,$(call sources,tests/fuzz))
FUZZ_TARGETS := $(filter-out replay,$(basename $(notdir $(FUZZ_OBJECTS))))

ifneq ($(TF_VERSION),)
$(shell mkdir -p $(B)/bin $(sort $(dir $(FUZZ_OBJECTS))))
$(FUZZ_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS)
$(FUZZ_OBJECTS): $(B)/%.o: %.cc $(B)/compile.txt
	$(compile)
FUZZED := $(CORE_OBJECTS) $(C_API_OBJECTS)
$(FUZZ_TARGETS:%=$(B)/bin/fuzz_%): $(B)/bin/fuzz_%: $(B)/tests/fuzz/%.o $(FUZZED)
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -pthread $(LDFLAGS) -fsanitize=fuzzer
$(FUZZ_TARGETS:%=$(B)/bin/replay_%): $(B)/bin/replay_%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/replay.o $(FUZZED)
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -pthread $(LDFLAGS)
# The test of many threads: the core, and nothing of Python, for ThreadSanitizer.
$(B)/bin/stress: tests/core/stress.cc tests/fuzz/call_arrays.h $(CORE_OBJECTS) $(C_API_OBJECTS) $(B)/compile.txt
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $< $(filter %.o,$^) $(CORE_CXXFLAGS) $(CXXFLAGS) -pthread $(LDFLAGS)
-include $(FUZZ_OBJECTS:.o=.d)
endif

# The core, which runs without TensorFlow, under three sanitizers. Leaks are not looked for: Python
# itself would be reported. ThreadSanitizer watches a program of ours: in Python it would watch NumPy;
# and one ISA, since threads meet in the driver, which is the same for all.
SANITIZE := -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZED := $(BUILD_DIR)/sanitize
SANITIZE_THREADS := -g -O1 -fsanitize=thread
STRESS_SECONDS ?= 10
# How often replay varies each file of the fuzz targets' corpora.
VARIATIONS ?= 2000
# $(call make_with,FOLDER,FLAGS) MAKE_ARGUMENTS
make_with = $(MAKE) --no-print-directory PYTHON='$(PYTHON)' BUILD_DIR=$(1) LIB_DIR=$(1)/lib GPU= \
  CXXFLAGS='$(CXXFLAGS) $(2)' LDFLAGS='$(LDFLAGS) $(2)'

# What tests start in processes of their own loads this tree's libraries as they are: all.
sanitize: all  ## Run the core's tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
	$(Q)$(call need,pytest)
	+$(Q)$(call make_with,$(SANITIZED),$(SANITIZE)) sanitize-core
	+$(Q)$(call make_with,$(SANITIZED)-threads,$(SANITIZE_THREADS)) ISA_BUILDS=baseline sanitize-threads

# The two halves; these run with the flags of the sanitizer. test_builds.py is not watched: it has
# libraries of other compilers built, for ten minutes.
sanitize-core: $(LIB_DIR)/libtf_bn_ops_core.so $(LIB_DIR)/build_info.json \
  $(FUZZ_TARGETS:%=$(B)/bin/replay_%)
	$(Q)LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	TF_BN_OPS_LIBRARY=$(LIB_DIR) '$(PYTHON)' -m pytest tests/core --ignore=tests/core/test_builds.py $(ARGS)
	$(Q)set -e; for target in $(FUZZ_TARGETS); do echo "  RUN     replay_$$target"; \
	  $(B)/bin/replay_$$target $(VARIATIONS) tests/fuzz/corpus/$$target/*; done
# Without address randomization: ThreadSanitizer needs the place of its shadow memory free.
sanitize-threads: $(B)/bin/stress
# One caller gives the pool's threads the most to do, eight queue for them.
	$(Q)set -e; for callers in 1 8; do TSAN_OPTIONS=halt_on_error=1 \
	  setarch "$$(uname -m)" -R $(B)/bin/stress $(STRESS_SECONDS) $$callers; done

CLANG ?= clang++
SECONDS ?= 60
FUZZING := $(BUILD_DIR)/fuzz
FUZZ_FLAGS := -g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_ENGINE_TEST := 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'

fuzz:  ## Fuzz the checks of the C ABI for SECONDS=60 in all; needs clang and its libFuzzer
	$(Q)$(CLANG) --version >/dev/null 2>&1 || { echo "error: no $(CLANG) found, whose libFuzzer make fuzz needs: install it (Debian/Ubuntu: apt install clang) or name yours with make fuzz CLANG=/path/to/clang++." >&2; exit 1; }
	$(Q)echo $(FUZZ_ENGINE_TEST) | $(CLANG) -x c++ - -fsanitize=fuzzer,address -o /dev/null 2>/dev/null \
	  || { echo "error: $(CLANG) has no libFuzzer, which make fuzz needs: install its runtime (Debian/Ubuntu: apt install libclang-rt-$$($(CLANG) -dumpversion | cut -d. -f1)-dev)." >&2; exit 1; }
	+$(Q)$(call make_with,$(FUZZING),$(FUZZ_FLAGS)) CXX='$(CLANG)' fuzz-run

# What is found is kept in the build folder, crashes too, beside the seeds.
fuzz-run: $(FUZZ_TARGETS:%=$(B)/bin/fuzz_%)
	$(Q)set -e; for target in $(FUZZ_TARGETS); do \
	  echo "  FUZZ    $$target ($$(($(SECONDS) / $(words $(FUZZ_TARGETS)))) s)"; \
	  mkdir -p $(BUILD_DIR)/corpus/$$target; \
	  $(B)/bin/fuzz_$$target -max_total_time=$$(($(SECONDS) / $(words $(FUZZ_TARGETS)))) \
	    -timeout=20 -print_final_stats=1 -verbosity=0 -artifact_prefix=$(BUILD_DIR)/$$target- \
	    $(BUILD_DIR)/corpus/$$target tests/fuzz/corpus/$$target; done

BAZEL ?= $(firstword $(foreach name,bazel bazel-bootstrap bazelisk,$(shell command -v $(name))) \
  $(wildcard node_modules/@bazel/bazel-linux_x64/bazel-*-linux-x86_64))
BAZEL_COMMANDS ?= build test

bazel: $(PYTHON_READY)  ## Build and test with Bazel, which downloads nothing; BAZEL=/path/to/bazel names one
	$(Q)[ -n '$(BAZEL)' ] || { echo "error: no bazel found: install one (Debian/Ubuntu: apt install bazel-bootstrap; or npm install @bazel/bazel-linux_x64@2.1.0) or name yours with make bazel BAZEL=/path/to/bazel." >&2; exit 1; }
	$(Q)export TF_PYTHON='$(if $(findstring /,$(PYTHON)),$(abspath $(PYTHON)),$(PYTHON))'; \
	  for command in $(BAZEL_COMMANDS); do '$(BAZEL)' $$command $(ARGS) //... || exit; done

# Each version has an environment of its own; a Python of the machine runs the script.
matrix:  ## Build and test with other TensorFlows: VERSIONS="2.16 2.21" ARGS=--every=8; writes the table of docs/support.md
	$(Q)$(or $(VENV_PYTHON),python3) tools/matrix.py $(if $(VERSIONS),--versions='$(VERSIONS)') --folder='$(ENVIRONMENTS)' $(ARGS)

# Where make matrix keeps an environment for each version; wheels are built in them too.
ENVIRONMENTS ?= $(BUILD_DIR)/matrix

wheels: $(PYTHON_READY)  ## Build the wheel of a release, for all TensorFlows, or those of VERSIONS, into dist/
	$(Q)$(call need,auditwheel)
	$(Q)'$(PYTHON)' tools/release/wheels.py $(if $(VERSIONS),--versions='$(VERSIONS)') --environments='$(ENVIRONMENTS)' $(ARGS)

release-check: $(PYTHON_READY)  ## Rehearse a release: wheels, sdist, fresh installs, SBOM, docs, the tests of the release tier; ARGS="--steps='build metadata'"
	$(Q)$(call need,auditwheel)
	$(Q)'$(PYTHON)' tools/release/check.py $(if $(VERSIONS),--versions='$(VERSIONS)') --environments='$(ENVIRONMENTS)' $(ARGS)

release:  ## Set the version and date the changelog: VERSION=1.2.3
	$(Q)$(or $(VENV_PYTHON),python3) tools/release/new_version.py '$(VERSION)' $(ARGS)

wheel-conformance: $(PYTHON_READY)  ## Write the harness alone as a pure-Python wheel into dist/, for vendors
	$(Q)'$(PYTHON)' tools/conformance_wheel.py dist

test-wheel: wheel  ## Install that wheel into a fresh environment and run the tests there, outside the tree
	$(Q)tools/test_wheel.sh '$(PYTHON)' dist/*_$(ARCH).whl $(TEST_WORKERS) $(ARGS)
