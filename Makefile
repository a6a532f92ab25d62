# Builds tf_bn_ops: the op library, the TensorFlow-free core library, and what is around them.
#
#   make                          makes .venv with a pinned TensorFlow and builds there
#   make PYTHON=/path/to/python   uses that environment's TensorFlow; installs nothing into it
#
# More targets: make help. pip and setup.py build through this file too (BUILD_DIR, LIB_DIR).
#   make gpu                      the same with GPU kernels: NVCC=, CUDA_ARCHS="80 90"; stays on until
#                                 make GPU= or make clean
#   make XLA=                     the same without kernels for jit_compile=True, which take a minute;
#                                 they are left out by themselves where TensorFlow lacks XLA's headers
#   make PREBUILT=dist/*.whl      compiles nothing: takes the libraries of a wheel, until make PREBUILT=
#   make ARCH=aarch64 ...         the same for another machine, into build/aarch64, with a cross compiler and
#                                 that machine's Python under an emulator: make aarch64-parts gets them
#   make ISAS=all                 with all instruction sets, not those of this processor and the baseline alone; pip,
#                                 make wheel and make test-all build all
# Other knobs: CXX, CXXFLAGS (appended to ours), LDFLAGS, V=1 (show commands),
# VENV_PYTHON (the Python that makes .venv), ARGS (passed on by conformance and test),
# TESTS (what make test runs).

BUILD_DIR ?= build
LIB_DIR ?= tf_bn_ops/lib
VENV ?= .venv
ARGS ?=
TESTS ?= tests
Q := $(if $(V),,@)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
# As many jobs as there are processors; a -j on the command line wins. A make that this one starts
# shares its jobs: with a -j of its own it would have but one where it has to restart itself.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2) --no-builtin-rules
endif

include mk/cross.mk

# A wheel whose libraries serve in the place of a build, for changes of Python and pages; make PREBUILT= builds again.
PREBUILT ?= $(wildcard $(LIB_DIR)/.prebuilt)
ifneq ($(PREBUILT),)
WHEEL := $(lastword $(sort $(filter %.whl,$(foreach found,$(wildcard $(PREBUILT)),$(if $(findstring _conformance-,$(found)),,$(found))))))
ifeq ($(WHEEL)$(filter %/.prebuilt,$(PREBUILT)),)
$(error PREBUILT=$(PREBUILT) is no wheel: name one that make wheel wrote, or that pip download tf-bn-ops got)
endif
endif

# ---- The Python environment ------------------------------------------------------------------

GOALS := $(or $(MAKECMDGOALS),all)
# The folder of libcudasim.so, a simulated GPU that executes PTX; and why gpu-ptx-test is skipped.
SIM ?= ../shared/gpusim
NVCC ?= nvcc
PTX_SKIPPED := $(if $(wildcard $(SIM)/libcudasim.so),$(if $(shell command -v '$(NVCC)'),,there \
  is no nvcc),SIM=$(SIM) has no libcudasim.so)
# These run on a machine for GPU tests, without TensorFlow; of Python they need NumPy.
GPU_GOALS := gpu-core gpu-test $(if $(PTX_SKIPPED),,gpu-ptx-test)
LINT_GOALS := lint lint-python lint-types lint-cxx format
GOALS_WITHOUT_PYTHON := help clean matrix release gpu-ptx-test $(GPU_GOALS)
GOALS_WITHOUT_TENSORFLOW := $(GOALS_WITHOUT_PYTHON) bazel docs wheels wheel-conformance release-check $(LINT_GOALS) \
  aarch64-parts
NEEDS_PYTHON := $(filter-out $(GOALS_WITHOUT_PYTHON),$(GOALS))
NEEDS_TENSORFLOW := $(filter-out $(GOALS_WITHOUT_TENSORFLOW),$(GOALS))

# Without the benchmark's peers, which are large and needed by nothing else, and a release's tools.
REQUIREMENTS := $(filter-out requirements/bench.txt requirements/release.txt,$(wildcard requirements/*.txt))

# Python and pages need what runs them, and nothing is compiled.
ifneq ($(PREBUILT),)
COMPILED := $(filter-out all conformance bench test networks suites $(GOALS_WITHOUT_TENSORFLOW),$(GOALS))
ifneq ($(COMPILED),)
$(error make $(COMPILED) compiles, and PREBUILT is there to compile nothing: make PREBUILT= $(COMPILED) builds)
endif
NEEDS_TENSORFLOW :=
ifeq ($(wildcard $(VENV)/ready.mk),)
VENV := .venv-prebuilt
REQUIREMENTS := $(addprefix requirements/,tensorflow.txt lint.txt commands.txt runtime.txt)
endif
endif

# What judges style needs no TensorFlow: where there is no .venv yet, a small one serves.
ifeq ($(filter-out $(LINT_GOALS),$(GOALS))$(wildcard $(VENV)/ready.mk),)
VENV := .venv-lint
REQUIREMENTS := $(addprefix requirements/,lint.txt commands.txt runtime.txt)
endif

# make remakes an included file that is missing or older than what it depends on, and starts over:
# that is how .venv and TensorFlow's flags come to be there before the rest is read.
ifeq ($(PYTHON),)
PYTHON := $(VENV)/bin/python
PYTHON_READY := $(VENV)/ready.mk
ifneq ($(NEEDS_PYTHON),)
include $(PYTHON_READY)
endif
$(PYTHON_READY): tools/make_venv.sh $(REQUIREMENTS)
	$(Q)tools/make_venv.sh '$(VENV)' $(REQUIREMENTS)
	$(Q)echo '# The environment is complete; made by tools/make_venv.sh.' > $@
HAVE_PYTHON := $(wildcard $(PYTHON_READY))
else
HAVE_PYTHON := given
ifneq ($(NEEDS_PYTHON),)
ifeq ($(shell command -v '$(PYTHON)'),)
$(error PYTHON=$(PYTHON) is not a program: give the path of a Python that has TensorFlow, or leave PYTHON out and make creates .venv)
endif
endif
endif

# ---- TensorFlow's flags, asked once per environment ------------------------------------------

ifneq ($(and $(NEEDS_TENSORFLOW),$(HAVE_PYTHON)),)
KEY := $(shell ARCH='$(ARCH)' TF_BN_OPS_UNTRIED='$(TF_BN_OPS_UNTRIED)' '$(PYTHON)' tools/tf_env.py key '$(BUILD_DIR)')
ifneq ($(filter error:,$(firstword $(KEY))),)
$(error $(wordlist 2,999,$(KEY)))
endif
ifeq ($(KEY),)
$(error PYTHON=$(PYTHON) does not run: give the path of a Python that has TensorFlow, or leave PYTHON out and make creates .venv)
endif
B := $(BUILD_DIR)/$(KEY)
include $(B)/config.mk
$(B)/config.mk: $(B)/environment.txt tools/tf_env.py
	$(Q)echo '  CONFIG  flags of TensorFlow in $(PYTHON)'
	$(Q)'$(PYTHON)' tools/tf_env.py config $@
$(B)/environment.txt: ;
endif

comma := ,

ifneq ($(filter $(GPU_GOALS),$(GOALS)),)
ifeq ($(NEEDS_TENSORFLOW),)
KEY := core
B := $(BUILD_DIR)/core
TF_VERSION := none
TF_CXXFLAGS := -std=c++17
GPU := 1
endif
endif

# ---- Compiler and flags ----------------------------------------------------------------------

ifneq ($(TF_VERSION),)
CXX_VERSION := $(shell $(CXX) -dumpfullversion -dumpversion 2>/dev/null)
ifeq ($(CXX_VERSION),)
$(error the C++ compiler '$(CXX)' does not run: install one (Debian/Ubuntu: apt install g++) or name yours with make CXX=/path/to/compiler)
endif
ifneq ($(CROSS),)
ifeq ($(filter $(ARCH)%,$(shell $(CXX) -dumpmachine)),)
$(error the C++ compiler '$(CXX)' does not build for $(ARCH): leave out CXX, or name one that does (Debian/Ubuntu: apt install g++-$(ARCH)-linux-gnu))
endif
endif
endif

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tf_bn_ops/_version.py)
HARDENING := $(shell tools/list_flags.sh flags mk/hardening.txt)
OUR_CXXFLAGS := $(shell tools/list_flags.sh flags mk/cxxflags.txt)
# Not even an indirect include of TensorFlow compiles in the core: it gets no path to it.
KERNEL_CXXFLAGS = $(TF_CXXFLAGS) $(OUR_CXXFLAGS) -I.
CORE_CXXFLAGS = $(TF_CXXFLAGS) $(OUR_CXXFLAGS) $(HARDENING) -I. -DTFBN_VERSION=$(subst .,_,$(VERSION))
TF_ALL_CXXFLAGS = $(TF_INCLUDES) $(TF_PREFIX_MAP) $(CORE_CXXFLAGS)
# The C++ API, and programs on top of it, include its headers as users do.
CLIENT_CXXFLAGS = $(TF_ALL_CXXFLAGS) -Icc/client/include
OUR_LDFLAGS := -shared $(shell tools/list_flags.sh flags mk/ldflags.txt)
PROGRAM_LDFLAGS := $(filter-out -shared -Wl$(comma)--version-script=%,$(OUR_LDFLAGS))
# tensorflow::Scope and its ops are in a library of their own, which tf.sysconfig does not name.
TF_CC_LDFLAGS = $(TF_LDFLAGS) $(subst _framework,_cc,$(filter -l%,$(TF_LDFLAGS)))
# Beside the library, or where a wheel for several TensorFlows has its one core library.
CORE_RPATH := '-Wl,-rpath,$$ORIGIN:$$ORIGIN/../lib'
# Installed, the package lies beside the tensorflow package.
CLIENT_RPATH := '-Wl,-rpath,$$ORIGIN/../../tensorflow'
# XLA kernels see headers of XLA's, which look for those of others, and link TensorFlow's compiler.
XLA_CXXFLAGS = $(TF_ALL_CXXFLAGS) $(XLA_INCLUDES)
PROGRAM_RPATH := '-Wl,-rpath,$$ORIGIN:$$ORIGIN/../lib' $(CLIENT_RPATH)

# ---- XLA -------------------------------------------------------------------------------------

# Not empty: with kernels for jit_compile=True, in a library of their own.
XLA ?= $(if $(XLA_INCLUDES),1)
ifneq ($(and $(XLA),$(TF_VERSION)),)
ifeq ($(XLA_INCLUDES),)
$(error TensorFlow $(TF_VERSION) of $(PYTHON) lacks headers of XLA or libtensorflow_cc.so.2, which kernels for jit_compile need: build without them (leave out XLA=1), or use a TensorFlow wheel of PyPI)
endif
endif

# ---- Sources: whatever lies in the folders ---------------------------------------------------

sources = $(sort $(wildcard $(1)/*.cc))
objects = $(patsubst %.cc,$(B)/%.o,$(call sources,cc/$(1)))

# Each line of isa_builds.txt that fits this machine, as name|condition|flag|flag...
ISAS ?= $(if $(filter test-all wheel% release%,$(GOALS)),all,native)
ifeq ($(filter all native,$(ISAS)),)
$(error ISAS=$(ISAS) is neither native, the instruction sets of this processor, nor all)
endif
ISA_BUILDS := $(shell ARCH='$(ARCH)' tools/list_flags.sh $(ISAS:all=isa) cc/cpu/isa/isa_builds.txt)
isa_name = $(firstword $(subst |, ,$(1)))
isa_condition = $(or $(word 2,$(subst |, ,$(1))),true)
isa_flags = $(wordlist 3,99,$(subst |, ,$(1)))
empty :=
ISA_NAMES := $(foreach build,$(ISA_BUILDS),$(call isa_name,$(build)))
ISA_LIST := $(subst $(empty) $(empty),,$(foreach build,$(ISA_BUILDS), \
  X($(call isa_name,$(build)),$(call isa_condition,$(build)))))
ISA_OBJECTS := $(foreach name,$(ISA_NAMES), \
  $(patsubst cc/cpu/isa/%.cc,$(B)/cc/cpu/isa/%.$(name).o,$(call sources,cc/cpu/isa)))

CORE_OBJECTS := $(call objects,core) $(call objects,cpu) $(ISA_OBJECTS)
C_API_OBJECTS := $(call objects,c_api)
# Older symbols in the place of this machine's newest, so that older systems load the libraries.
PORTABLE_OBJECTS := $(call objects,portable)
OP_CALL_OBJECTS := $(B)/cc/tf/ops/unit.o
OP_OBJECTS := $(B)/cc/tf/kernels/unit.o $(OP_CALL_OBJECTS)
OVERRIDE_OBJECTS := $(B)/cc/tf/override/unit.o
OPTIMIZER_OBJECTS := $(B)/cc/tf/optimizer/unit.o
XLA_OBJECTS := $(if $(XLA),$(call objects,tf/xla))
CLIENT_OBJECTS := $(B)/cc/client/unit.o
# Each source in these folders is a program.
EXAMPLE_OBJECTS := $(patsubst %.cc,$(B)/%.o,$(call sources,examples))
EXAMPLES := $(EXAMPLE_OBJECTS:$(B)/examples/%.o=$(B)/bin/%)
# Files that hold what a step depends on beside its sources (flags, the list of objects); written
# only when that changed, so a changed flag rebuilds and an unchanged one does not.
# $(call remember,FILE,TEXT)
define remember
ifneq ($$(strip $$(file <$(1))),$$(strip $(2)))
$(1): FORCE
endif
$(1):
	$$(Q)mkdir -p $$(@D)
	$$(Q)printf '%s\n' $$(call shell_quoted,$$(strip $(2))) > $$@
endef
shell_quoted = '$(subst ','\'',$(1))'

.PHONY: FORCE
FORCE:

include mk/gpu.mk

OBJECTS := $(CORE_OBJECTS) $(C_API_OBJECTS) $(PORTABLE_OBJECTS) $(OP_OBJECTS) $(OVERRIDE_OBJECTS) $(OPTIMIZER_OBJECTS) \
  $(XLA_OBJECTS) $(CLIENT_OBJECTS) $(EXAMPLE_OBJECTS)

# ---- Rules -----------------------------------------------------------------------------------

ifneq ($(TF_VERSION),)
$(shell mkdir -p $(sort $(dir $(OBJECTS) $(GPU_OBJECTS))) $(B)/lib $(B)/bin)

COMPILE_INPUTS := $(CXX) $(CXX_VERSION) | $(XLA_CXXFLAGS) | $(CXXFLAGS) | $(VERSION)
LINK_INPUTS := $(OUR_LDFLAGS) | $(TF_LDFLAGS) | $(LDFLAGS) | $(OBJECTS) $(GPU_OBJECTS) $(CUDA_LDFLAGS)
$(eval $(call remember,$(B)/compile.txt,$$(COMPILE_INPUTS)))
$(eval $(call remember,$(B)/link.txt,$$(LINK_INPUTS)))
$(eval $(call remember,$(B)/isas.txt,$$(ISA_BUILDS)))
$(call objects,cpu) $(B)/lib/build_info.json: $(B)/isas.txt

COMPILE = $(CXX) -MMD -MP -c -o $@ $<

$(call objects,core) $(C_API_OBJECTS) $(PORTABLE_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS)
$(call objects,cpu): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS) '-DTF_BN_OPS_ISA_LIST=$(ISA_LIST)' \
  '-DTF_BN_OPS_VERSION="$(VERSION)"'
$(OP_OBJECTS) $(OVERRIDE_OBJECTS): private LOCAL_CXXFLAGS = $(TF_ALL_CXXFLAGS)
$(filter %_handler.o,$(XLA_OBJECTS)): private LOCAL_CXXFLAGS = $(XLA_CXXFLAGS)
# What runs when a graph is built, optimized or compiled, not in a call: at -O1 a twentieth of the time that
# xla_kernels.cc takes is spent on its code, the rest on TensorFlow's headers.
$(filter-out %_handler.o,$(XLA_OBJECTS)): private LOCAL_CXXFLAGS = $(XLA_CXXFLAGS) -O1
$(OPTIMIZER_OBJECTS): private LOCAL_CXXFLAGS = $(TF_ALL_CXXFLAGS) -O1
$(CLIENT_OBJECTS) $(EXAMPLE_OBJECTS): private LOCAL_CXXFLAGS = $(CLIENT_CXXFLAGS) -O1

compile = $(Q)echo '  CXX     $<' && $(COMPILE) $(LOCAL_CXXFLAGS) $(CXXFLAGS)
$(filter-out $(ISA_OBJECTS) %/unit.o,$(OBJECTS)): $(B)/%.o: %.cc $(B)/compile.txt
	$(compile)

# One translation unit for a folder, or for what a library has of several: TensorFlow's headers take six of
# the eight seconds of a source. The first source is compiled last; cpu_launch.cc, which says what it wants of
# Eigen, before all others.
$(filter %/unit.o,$(OBJECTS)): $(B)/%/unit.o: $(B)/compile.txt
	$(Q)echo '  CXX     $*/*.cc'
	$(Q)$(CXX) -MMD -MP -c -o $@ $(patsubst %,-include %,$(wordlist 2,99,$(unit_sources))) $(firstword $(unit_sources)) $(LOCAL_CXXFLAGS) $(CXXFLAGS)
# Without those that are gone since the unit was built, for which there is this empty rule.
unit_sources = $(wildcard $(filter %.cc,$^))
cc/%.cc: ;
OP_CALL_SOURCES := cc/tf/ops/op_call.cc cc/tf/ops/check_shapes.cc
$(OP_CALL_OBJECTS): $(OP_CALL_SOURCES)
$(B)/cc/tf/kernels/unit.o: $(call sources,cc/tf/kernels) $(filter-out $(OP_CALL_SOURCES),$(call sources,cc/tf/ops)) \
  $(call sources,cc/tf/ops/generated)
$(OVERRIDE_OBJECTS): $(call sources,cc/tf/override) cc/tf/kernels/cpu_launch.cc
$(OPTIMIZER_OBJECTS): $(call sources,cc/tf/optimizer)
$(CLIENT_OBJECTS): $(call sources,cc/client)

# $(call isa_rule,NAME,FLAGS)
define isa_rule
$(call remember,$(B)/isa_$(1).txt,$(2))
$(B)/cc/cpu/isa/%.$(1).o: cc/cpu/isa/%.cc $(B)/compile.txt $(B)/isa_$(1).txt
	$$(Q)echo '  CXX     $$< ($(1))'
	$$(Q)$$(COMPILE) $$(KERNEL_CXXFLAGS) -DTF_BN_OPS_ISA=$(1) $(2) $$(CXXFLAGS)
endef
$(foreach build,$(ISA_BUILDS),$(eval $(call \
  isa_rule,$(call isa_name,$(build)),$(call isa_flags,$(build)))))

$(B)/portable.a: $(PORTABLE_OBJECTS)
	$(Q)rm -f $@ && $(AR) rcsD $@ $^

# Renamed into place, so that a process that has the old library loaded keeps it whole.
# $(call link_library,FLAGS)
link_library = $(Q)$(CXX) -o $@.new $(filter %.o,$^) $(filter %.a,$^) $(filter %.so,$|) $(OUR_LDFLAGS) \
  -Wl,-soname,$(@F) $(LDFLAGS) $(1) && mv $@.new $@

# The kernels are in the core library alone, whose functions the others call (TFBN_SHARED of
# cc/core/host_device.h). Order-only: another core library has the same functions.
ON_CORE := | $(B)/lib/libtf_bn_ops_core.so
$(B)/lib/libtf_bn_ops.so: $(OP_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_LDFLAGS) $(CUDA_LDFLAGS))

$(B)/lib/libtf_bn_ops_override.so: $(OP_CALL_OBJECTS) $(OVERRIDE_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_LDFLAGS))

$(B)/lib/libtf_bn_ops_optimizer.so: $(OPTIMIZER_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_LDFLAGS))

$(B)/lib/libtf_bn_ops_xla.so: $(OP_CALL_OBJECTS) $(XLA_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_CC_LDFLAGS))

$(B)/lib/libtf_bn_ops_core.so: $(CORE_OBJECTS) $(C_API_OBJECTS)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CUDA_LDFLAGS))

$(addprefix $(B)/lib/libtf_bn_ops,.so _override.so _optimizer.so _xla.so _core.so _client.so): \
  $(B)/portable.a $(B)/link.txt mk/exports.map

$(B)/lib/libtf_bn_ops_client.so: $(CLIENT_OBJECTS)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CLIENT_RPATH) $(TF_CC_LDFLAGS))

$(EXAMPLES): $(B)/bin/%: $(B)/examples/%.o
# Examples are run where they were built: they get the path of this TensorFlow as well.
$(EXAMPLES): private LOCAL_LDFLAGS = $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(TF_LDFLAGS)))
$(B)/bin/%: $(B)/lib/libtf_bn_ops_client.so $(B)/portable.a $(B)/link.txt
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@.new $(filter %.o,$^) $(filter %.a %.so,$^) $(PROGRAM_LDFLAGS) $(PROGRAM_RPATH) $(LOCAL_LDFLAGS) $(LDFLAGS) $(TF_CC_LDFLAGS)
	$(Q)mv $@.new $@

$(B)/lib/build_info.json: $(B)/compile.txt $(B)/link.txt $(B)/config.mk tools/write_build_info.py tools/tf_env.py \
  tf_bn_ops/_version.py
	$(Q)'$(PYTHON)' tools/write_build_info.py $@ \
	  'version=$(VERSION)' \
	  'tensorflow_version=$(TF_VERSION)' 'tensorflow_distribution=$(TF_DISTRIBUTION)' \
	  "compiler=$$($(CXX) --version | head -n 1)" \
	  "cxxflags="$(call shell_quoted,$(CORE_CXXFLAGS) $(CXXFLAGS)) 'isa_builds=$(ISA_NAMES)' \
	  'xla=$(if $(XLA),yes,no)' \
	  $(if $(GPU),'cuda_version=$(CUDA_VERSION)' 'cuda_archs=$(CUDA_ARCHS)')
	$(if $(XLA),,$(Q)echo '  XLA     left out: jit_compile=True will not find the ops')
$(if $(GPU),$(B)/lib/build_info.json: $(GPU_DIR)/nvcc.txt)

-include $(OBJECTS:.o=.d)

# The package's copy. It names the environment it came from: after a switch of PYTHON the other
# environment's copy, though newer, is replaced.
# First what takes longest.
LIBRARIES := $(if $(XLA),libtf_bn_ops_xla.so) libtf_bn_ops.so libtf_bn_ops_core.so \
  libtf_bn_ops_client.so libtf_bn_ops_override.so libtf_bn_ops_optimizer.so build_info.json
HEADERS := $(patsubst cc/client/include/%,%,$(wildcard $(addprefix cc/client/include/tf_bn_ops/,*.h */*.h)))
PACKAGE_DIR := $(patsubst %/,%,$(dir $(LIB_DIR)))
INSTALLED := $(addprefix $(LIB_DIR)/,$(LIBRARIES)) $(addprefix $(PACKAGE_DIR)/include/,$(HEADERS))
# The headers of the C ABI, in which C stands alone.
C_HEADERS := $(patsubst cc/c_api/%,$(PACKAGE_DIR)/include/tf_bn_ops/%,$(wildcard cc/c_api/tf_bn_ops_*.h))
$(C_HEADERS): $(PACKAGE_DIR)/include/tf_bn_ops/%: cc/c_api/% cc/core/generated/roles.h tools/c_header.py
	$(Q)mkdir -p $(@D)
	$(Q)'$(PYTHON)' tools/c_header.py $< > $@.new && mv $@.new $@
$(eval $(call remember,$(LIB_DIR)/.environment,$$(KEY)))
$(filter $(LIB_DIR)/%,$(INSTALLED)): $(LIB_DIR)/%: $(B)/lib/%
$(filter $(PACKAGE_DIR)/include/%,$(INSTALLED)): $(PACKAGE_DIR)/include/%: cc/client/include/%
$(INSTALLED): $(LIB_DIR)/.environment
	$(Q)mkdir -p $(@D)
	$(Q)cp $(filter-out $<,$^) $@.new && mv $@.new $@
	$(if $(XLA),,$(Q)rm -f $(LIB_DIR)/libtf_bn_ops_xla.so)
endif

# ---- Targets ---------------------------------------------------------------------------------

.PHONY: all gpu examples conformance bench test test-all wheel docs lint lint-python \
  lint-types lint-cxx format clean help

all: $(if $(TF_VERSION),$(B)/built) $(if $(PREBUILT),$(LIB_DIR)/.prebuilt)  ## Build tf_bn_ops/lib (the default); ISAS=all: also for other processors than this one
$(LIB_DIR)/.prebuilt: $(WHEEL)
	$(Q)rm -rf $(BUILD_DIR)/prebuilt $(LIB_DIR) $(LIB_DIR)_tf* tf_bn_ops/include
	$(Q)'$(PYTHON)' -m zipfile -e '$<' $(BUILD_DIR)/prebuilt
	$(Q)cp -R $(BUILD_DIR)/prebuilt/tf_bn_ops/lib* $(BUILD_DIR)/prebuilt/tf_bn_ops/include tf_bn_ops
	$(Q)touch $@
	$(Q)echo '  BUILT   nothing: libraries of $<, until make PREBUILT='
$(B)/built: $(INSTALLED) $(C_HEADERS)
	$(Q)rm -rf $(LIB_DIR)/.prebuilt $(LIB_DIR)_tf*
	$(Q)echo '  BUILT   kernels: $(ISA_NAMES)$(if $(filter native,$(ISAS)), (what this processor runs; ISAS=all builds the others too))'
	$(Q)touch $@

gpu:  ## Build tf_bn_ops/lib with GPU kernels; NVCC=/path/to/nvcc CUDA_ARCHS="80 90"
	$(Q)rm -f $(LIB_DIR)/.gpu
	$(Q)$(MAKE) --no-print-directory GPU=1 all
	$(Q)echo '$(CUDA_ARCHS)' > $(LIB_DIR)/.gpu

conformance: all  ## Diff the ops against tf.raw_ops and a float64 oracle; ARGS="--cases=2000 --seed=3"
	$(Q)'$(PYTHON)' -m tf_bn_ops conformance $(ARGS)

bench: all  ## Measure the ops against TensorFlow and PyTorch; ARGS="--quick"
	$(Q)'$(PYTHON)' tools/bench/bench_command.py $(ARGS)

examples: all $(EXAMPLES)  ## Build the C++ examples and run them
	$(Q)set -e; for example in $(EXAMPLES); do echo "  RUN     $$example"; $$example; done

# $(call need,MODULE[,PACKAGE]): one sentence where the environment, ours or given, lacks a tool.
need = '$(PYTHON)' -c 'import importlib.util as u, sys; sys.exit(u.find_spec("$(1)") is None)' \
  || { echo "error: $(PYTHON) has no $(or $(2),$(1)), which make $@ needs: install it there ($(PYTHON) -m pip install $(or $(2),$(1))), or run make $@ without PYTHON=." >&2; exit 1; }

# Whole files to each worker: their fixtures build things that their tests share. In the order of
# tests/conftest.py. Four at most: each worker holds a TensorFlow.
TEST_WORKERS := -n $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4) \
  --dist loadfile --no-loadscope-reorder

# $(call pytest,MARKERS): CONTRIBUTING.md says which tier proves what.
pytest = $(Q)$(call need,pytest); \
  workers=$$('$(PYTHON)' -c 'import xdist' 2>/dev/null && echo '$(TEST_WORKERS)'); \
  '$(PYTHON)' -m pytest -m '$(1)' $$workers $(TESTS) $(ARGS)

test: all  ## Run the tests that belong to every change, a few minutes; ARGS="-k name -x" goes to pytest
	$(call pytest,not long and not large and not release)

test-all: all  ## Run these and the long ones: wheels, docs, CUDA, examples, mutants, long sweeps
	$(call pytest,not large and not release)

wheel: all  ## Build a wheel for this environment's TensorFlow alone into dist/
	$(Q)$(call need,setuptools)
	$(Q)rm -rf $(BUILD_DIR)/wheel && mkdir -p $(BUILD_DIR)/wheel
	$(Q)'$(PYTHON)' -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(BUILD_DIR)/wheel .
	$(Q)rm -f dist/*_$(ARCH).whl
	$(Q)$(if $(CROSS),PATH="$(AARCH64_PARTS)/patchelf/bin:$$PATH") tools/repair_wheel.sh '$(PYTHON)' $(BUILD_DIR)/wheel/*.whl dist
	$(Q)ls dist/*_$(ARCH).whl

docs: $(PYTHON_READY)  ## Build the documentation site into build/docs/site
	$(Q)$(call need,mkdocs)
	$(Q)$(call need,material,mkdocs-material)
	$(Q)$(call need,mkdocstrings_handlers,mkdocstrings[python])
	$(Q)'$(PYTHON)' tools/docs.py --mermaid $(BUILD_DIR)/docs

lint: lint-python lint-types lint-cxx  ## Check style, types and spelling: ruff, mypy, clang-format, codespell

PYTHON_SOURCES := tf_bn_ops tools tests setup.py $(wildcard examples)
CXX_SOURCES = $(shell find cc tests tools examples -name '*.cc' -o -name '*.h' -o -name '*.cu')
CLANG_FORMAT = '$(PYTHON)' -c 'from clang_format import clang_format; clang_format()'

lint-python: $(PYTHON_READY)
	$(Q)'$(PYTHON)' tools/generate_ops/generate_ops.py --check
	$(Q)'$(PYTHON)' tools/promises.py --check
	$(Q)$(call need,ruff)
	$(Q)'$(PYTHON)' -m ruff check $(PYTHON_SOURCES)
	$(Q)'$(PYTHON)' -m ruff format --check $(PYTHON_SOURCES)
	$(Q)$(call need,codespell_lib,codespell)
	$(Q)'$(PYTHON)' -m codespell_lib $(PYTHON_SOURCES) cc mk docs/*.md docs/adr $(wildcard *.md)

lint-types: $(PYTHON_READY)
	$(Q)$(call need,mypy)
	$(Q)'$(PYTHON)' -m mypy --check-untyped-defs --disallow-untyped-defs tf_bn_ops tools
	$(Q)'$(PYTHON)' -m mypy --disable-error-code=annotation-unchecked tests

lint-cxx: $(PYTHON_READY)
	$(Q)$(call need,clang_format,clang-format)
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(CXX_SOURCES)

format: $(PYTHON_READY)  ## Reformat Python and C++ sources in place
	$(Q)$(call need,ruff)
	$(Q)$(call need,clang_format,clang-format)
	$(Q)'$(PYTHON)' tools/generate_ops/generate_ops.py
	$(Q)'$(PYTHON)' tools/promises.py
	$(Q)'$(PYTHON)' -m ruff check --fix $(PYTHON_SOURCES)
	$(Q)'$(PYTHON)' -m ruff format $(PYTHON_SOURCES)
	$(Q)$(CLANG_FORMAT) -i $(CXX_SOURCES)

include mk/dev.mk

clean:  ## Remove what was built; .venv stays
	$(Q)rm -rf $(BUILD_DIR) $(LIB_DIR) $(LIB_DIR)_tf* tf_bn_ops/include dist *.egg-info bazel-*

help:  ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/\1|\2/p' Makefile mk/gpu.mk mk/dev.mk | \
	  awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'
	@echo 'PYTHON=/path/to/python uses that environment instead of .venv and installs nothing into it.'
