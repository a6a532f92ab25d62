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
#   make ARCH=aarch64 ...         the same for another machine, into build/aarch64, with a cross compiler and
#                                 that machine's Python under an emulator: make aarch64-parts gets them
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

# ---- The machine that is built for -----------------------------------------------------------

HOST_ARCH := $(shell uname -m)
ARCH ?= $(HOST_ARCH)
AARCH64_PARTS := $(CURDIR)/build/aarch64
AARCH64_CXX ?= $(or $(shell command -v aarch64-linux-gnu-g++),$(AARCH64_PARTS)/bin/aarch64-linux-gnu-g++)
# Programs that this file starts see it, too; pip builds through this file.
export ARCH
ifneq ($(ARCH),$(HOST_ARCH))
ifneq ($(ARCH),aarch64)
$(error ARCH=$(ARCH) is none that $(HOST_ARCH) builds for: leave it out, or say ARCH=aarch64)
endif
CROSS := build/$(ARCH)
ifeq ($(PYTHON),)
PYTHON := $(AARCH64_PARTS)/bin/python
ifeq ($(wildcard $(PYTHON)),)
$(error ARCH=$(ARCH) needs a Python and a TensorFlow of that machine: run make aarch64-parts first, which fetches them into $(CROSS))
endif
endif
ifeq ($(origin CXX),default)
CXX := $(AARCH64_CXX)
endif
ifeq ($(origin BUILD_DIR),file)
BUILD_DIR := $(CROSS)
endif
ifeq ($(origin LIB_DIR),file)
LIB_DIR := $(CROSS)/tf_bn_ops/lib
endif
GPU :=
endif

# ---- The Python environment ------------------------------------------------------------------

GOALS := $(or $(MAKECMDGOALS),all)
# The folder of libcudasim.so, a simulated GPU that executes PTX; and why gpu-ptx-test is skipped.
SIM ?= ../shared/gpusim
NVCC ?= nvcc
PTX_SKIPPED := $(if $(wildcard $(SIM)/libcudasim.so),$(if $(shell command -v '$(NVCC)'),,there \
  is no nvcc),SIM=$(SIM) has no libcudasim.so)
# These run on a machine for GPU tests, without TensorFlow; of Python they need NumPy.
GPU_GOALS := gpu-core gpu-test gpu-bench $(if $(PTX_SKIPPED),,gpu-ptx-test)
GOALS_WITHOUT_PYTHON := help clean distclean matrix release hip gpu-ptx-test gpu-sass $(GPU_GOALS)
GOALS_WITHOUT_TENSORFLOW := $(GOALS_WITHOUT_PYTHON) bazel docs wheels wheel-conformance release-check lint lint-python lint-types \
  lint-cxx format aarch64-parts
NEEDS_PYTHON := $(filter-out $(GOALS_WITHOUT_PYTHON),$(GOALS))
NEEDS_TENSORFLOW := $(filter-out $(GOALS_WITHOUT_TENSORFLOW),$(GOALS))

# Without the benchmark's peers, which are large and needed by nothing else, and a release's tools.
REQUIREMENTS := $(filter-out requirements/bench.txt requirements/release.txt,$(wildcard requirements/*.txt))

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
CORE_CXXFLAGS = $(TF_CXXFLAGS) $(OUR_CXXFLAGS) $(HARDENING) -I.
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

# ---- CUDA ------------------------------------------------------------------------------------

# Not empty: with GPU kernels. make gpu leaves a file that says so, with the chosen architectures.
GPU ?= $(if $(wildcard $(LIB_DIR)/.gpu),1)
ifeq ($(GPU),)
all: $(if $(wildcard $(LIB_DIR)/.gpu),forget-gpu)
endif
.PHONY: forget-gpu
forget-gpu:
	$(Q)rm -f $(LIB_DIR)/.gpu

ifneq ($(and $(GPU),$(TF_VERSION)),)
CUDA_VERSION := $(shell '$(NVCC)' --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
ifeq ($(CUDA_VERSION),)
$(error the CUDA compiler '$(NVCC)' does not run: install the CUDA toolkit, name its compiler with NVCC=/path/to/nvcc, or build without GPU kernels with make GPU=)
endif
# Every architecture that this nvcc knows from the first with the arithmetic we use to the last
# that the kernels were looked at for; later devices compile the PTX of the last when they load it.
CUDA_KNOWN_ARCHS := $(shell '$(NVCC)' --list-gpu-arch | sed -n 's/^compute_\([789][0-9]\)$$/\1/p' | sort -n)
ifeq ($(CUDA_ARCHS),)
CUDA_ARCHS := $(or $(shell cat $(LIB_DIR)/.gpu 2>/dev/null),$(filter 7% 8% 90,$(CUDA_KNOWN_ARCHS)))
endif
CUDA_PTX := $(lastword $(CUDA_ARCHS))
NVCCFLAGS ?=
COMMON_NVCCFLAGS := $(shell tools/list_flags.sh flags mk/nvccflags.txt) -I.
OUR_NVCCFLAGS := $(COMMON_NVCCFLAGS) \
  $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
  -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX)
# Static and hidden: the library loads where there is no CUDA, and beside any other CUDA.
CUDA_LDFLAGS := $(shell '$(NVCC)' --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^\#[$$] LIBRARIES=//p') \
  -lcudart_static -ldl -lrt
endif

# ---- Sources: whatever lies in the folders ---------------------------------------------------

sources = $(sort $(filter-out %_test.cc,$(wildcard cc/$(1)/*.cc)))
objects = $(patsubst %.cc,$(B)/%.o,$(call sources,$(1)))

# Each line of isa_builds.txt that fits this machine, as name|condition|flag|flag...
ISA_BUILDS := $(shell ARCH='$(ARCH)' tools/list_flags.sh isa cc/cpu/isa/isa_builds.txt)
isa_name = $(firstword $(subst |, ,$(1)))
isa_condition = $(or $(word 2,$(subst |, ,$(1))),true)
isa_flags = $(wordlist 3,99,$(subst |, ,$(1)))
empty :=
ISA_NAMES := $(foreach build,$(ISA_BUILDS),$(call isa_name,$(build)))
ISA_LIST := $(subst $(empty) $(empty),,$(foreach build,$(ISA_BUILDS), \
  X($(call isa_name,$(build)),$(call isa_condition,$(build)))))
ISA_OBJECTS := $(foreach name,$(ISA_NAMES), \
  $(patsubst cc/cpu/isa/%.cc,$(B)/cc/cpu/isa/%.$(name).o,$(call sources,cpu/isa)))

CORE_OBJECTS := $(call objects,core) $(call objects,cpu) $(ISA_OBJECTS)
C_API_OBJECTS := $(call objects,c_api)
# The kernels are in the core library alone; the others call its table (cc/shared_core).
EXPORT_OBJECTS := $(B)/cc/shared_core/export.o
IMPORT_OBJECTS := $(B)/cc/shared_core/import.o
# Older symbols in the place of this machine's newest, so that older systems load the libraries.
PORTABLE_OBJECTS := $(call objects,portable)
OP_OBJECTS := $(call objects,ops) $(call objects,ops/generated) $(call objects,kernels)
OVERRIDE_OBJECTS := $(call objects,override)
OPTIMIZER_OBJECTS := $(call objects,optimizer)
XLA_OBJECTS := $(if $(XLA),$(call objects,xla))
CLIENT_OBJECTS := $(call objects,client)
# Beside the objects of the CPU build, which knows nothing of them.
GPU_DIR := $(BUILD_DIR)/gpu/$(KEY)
gpu_objects = $(patsubst %,$(GPU_DIR)/%.o,$(sort $(wildcard cc/$(1))))
CUDA_OBJECTS := $(if $(GPU),$(call gpu_objects,cuda/*.cu) $(call gpu_objects,cuda/kernels/*.cu))
GPU_C_API_OBJECTS := $(if $(GPU),$(call gpu_objects,c_api/cuda/*.cc))
GPU_OP_OBJECTS := $(if $(GPU),$(call gpu_objects,kernels/gpu/*.cc))
GPU_OBJECTS := $(CUDA_OBJECTS) $(GPU_C_API_OBJECTS) $(GPU_OP_OBJECTS)
# Each source in these folders is a program.
TOOL_OBJECTS := $(call objects,tools)
EXAMPLE_OBJECTS := $(call objects,examples)
# Each of these too, linked with a fuzzing engine (make fuzz) or with replay.cc (make sanitize).
FUZZ_OBJECTS := $(call objects,fuzz)
FUZZ_TARGETS := $(filter-out replay,$(basename $(notdir $(FUZZ_OBJECTS))))
TOOLS := $(notdir $(TOOL_OBJECTS:.o=))
EXAMPLES := $(EXAMPLE_OBJECTS:$(B)/cc/examples/%.o=$(B)/bin/%)
OBJECTS := $(CORE_OBJECTS) $(C_API_OBJECTS) $(EXPORT_OBJECTS) $(IMPORT_OBJECTS) \
  $(PORTABLE_OBJECTS) $(OP_OBJECTS) $(OVERRIDE_OBJECTS) $(OPTIMIZER_OBJECTS) \
  $(XLA_OBJECTS) $(CLIENT_OBJECTS) $(TOOL_OBJECTS) $(EXAMPLE_OBJECTS) $(FUZZ_OBJECTS)

# ---- Rules -----------------------------------------------------------------------------------

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

ifneq ($(TF_VERSION),)
$(shell mkdir -p $(sort $(dir $(OBJECTS) $(GPU_OBJECTS))) $(B)/lib $(B)/bin)

COMPILE_INPUTS := $(CXX) $(CXX_VERSION) | $(XLA_CXXFLAGS) | $(CXXFLAGS) | $(ISA_BUILDS) | $(VERSION)
LINK_INPUTS := $(OUR_LDFLAGS) | $(TF_LDFLAGS) | $(LDFLAGS) | $(OBJECTS) $(GPU_OBJECTS) $(CUDA_LDFLAGS)
$(eval $(call remember,$(B)/compile.txt,$$(COMPILE_INPUTS)))
$(eval $(call remember,$(B)/link.txt,$$(LINK_INPUTS)))

COMPILE = $(CXX) -MMD -MP -c -o $@ $<

$(call objects,core) $(C_API_OBJECTS) $(PORTABLE_OBJECTS) $(FUZZ_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS)
$(EXPORT_OBJECTS) $(IMPORT_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS) \
  -DTFBN_ENTRY_POINTS=tfbn_entry_points_$(subst .,_,$(VERSION))
$(call objects,cpu): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS) '-DTF_BN_OPS_ISA_LIST=$(ISA_LIST)' \
  '-DTF_BN_OPS_VERSION="$(VERSION)"'
$(OP_OBJECTS) $(OVERRIDE_OBJECTS) $(OPTIMIZER_OBJECTS): private LOCAL_CXXFLAGS = $(TF_ALL_CXXFLAGS)
$(XLA_OBJECTS): private LOCAL_CXXFLAGS = $(XLA_CXXFLAGS)
$(CLIENT_OBJECTS) $(TOOL_OBJECTS) $(EXAMPLE_OBJECTS): private LOCAL_CXXFLAGS = $(CLIENT_CXXFLAGS)

$(filter-out $(ISA_OBJECTS),$(OBJECTS)): $(B)/%.o: %.cc $(B)/compile.txt
	$(Q)echo '  CXX     $<'
	$(Q)$(COMPILE) $(LOCAL_CXXFLAGS) $(CXXFLAGS)

# $(call isa_rule,NAME,FLAGS)
define isa_rule
$(B)/cc/cpu/isa/%.$(1).o: cc/cpu/isa/%.cc $(B)/compile.txt
	$$(Q)echo '  CXX     $$< ($(1))'
	$$(Q)$$(COMPILE) $$(KERNEL_CXXFLAGS) -DTF_BN_OPS_ISA=$(1) $(2) $$(CXXFLAGS)
endef
$(foreach build,$(ISA_BUILDS),$(eval $(call \
  isa_rule,$(call isa_name,$(build)),$(call isa_flags,$(build)))))

ifneq ($(GPU),)
CUDA_INPUTS := $(NVCC) $(CUDA_VERSION) | $(CXX) | $(OUR_NVCCFLAGS) | $(NVCCFLAGS)
$(eval $(call remember,$(GPU_DIR)/nvcc.txt,$$(CUDA_INPUTS)))
$(CUDA_OBJECTS): $(GPU_DIR)/%.o: % $(GPU_DIR)/nvcc.txt
	$(Q)echo '  NVCC    $< (sm_$(subst $(empty) $(empty), sm_,$(strip $(CUDA_ARCHS))))'
	$(Q)'$(NVCC)' -ccbin $(lastword $(CXX)) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< $(OUR_NVCCFLAGS) $(NVCCFLAGS)
$(GPU_C_API_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS)
$(GPU_OP_OBJECTS): private LOCAL_CXXFLAGS = $(TF_ALL_CXXFLAGS)
$(GPU_C_API_OBJECTS) $(GPU_OP_OBJECTS): $(GPU_DIR)/%.o: % $(B)/compile.txt
	$(Q)echo '  CXX     $<'
	$(Q)$(COMPILE) $(LOCAL_CXXFLAGS) $(CXXFLAGS)
-include $(GPU_OBJECTS:.o=.d)

# For the simulated GPU: the kernels as PTX alone, and the C ABI with the simulator's CUDA runtime.
PTX_DIR := $(GPU_DIR)/ptx
PTX_ARCH ?= $(CUDA_PTX)
PTX_OBJECTS := $(CUDA_OBJECTS:$(GPU_DIR)/%=$(PTX_DIR)/%)
$(eval $(call remember,$(PTX_DIR)/nvcc.txt,$$(CUDA_INPUTS) | $$(PTX_ARCH)))
$(PTX_OBJECTS): $(PTX_DIR)/%.o: % $(PTX_DIR)/nvcc.txt
	$(Q)echo '  NVCC    $< (PTX for sm_$(PTX_ARCH))'
	$(Q)mkdir -p $(@:.o=.keep)
	$(Q)'$(NVCC)' -ccbin $(lastword $(CXX)) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< -cudart none --keep --keep-dir $(@:.o=.keep) \
	  $(COMMON_NVCCFLAGS) $(NVCCFLAGS) -gencode arch=compute_$(PTX_ARCH),code=compute_$(PTX_ARCH)
# One module: the header of the first, and what is in all of them.
$(PTX_DIR)/kernels.ptx: $(PTX_OBJECTS)
	$(Q)awk 'NR == FNR || !/^\.(version|target|address_size)/' $(^:.o=.keep/*.ptx) > $@
$(PTX_DIR)/libgpu.so: $(PTX_OBJECTS) $(GPU_C_API_OBJECTS) $(call objects,core) $(filter-out %/tf_bn_ops_c.o,$(C_API_OBJECTS)) \
  cc/cuda/testing/simulated_runtime.cc $(PTX_DIR)/nvcc.txt
	$(Q)$(CXX) -shared -fPIC -o $@ $(filter %.o %.cc,$^) -L'$(SIM)' -lcudasim -Wl,-rpath,'$(abspath $(SIM))'
-include $(PTX_OBJECTS:.o=.d)

$(B)/lib/libtf_bn_ops.so: $(CUDA_OBJECTS) $(GPU_OP_OBJECTS)
$(B)/lib/libtf_bn_ops_core.so: $(CUDA_OBJECTS) $(GPU_C_API_OBJECTS)
endif

# Whatever else they use of the core, each links for itself.
$(B)/core.a: $(CORE_OBJECTS)
$(B)/portable.a: $(PORTABLE_OBJECTS)
$(B)/core.a $(B)/portable.a:
	$(Q)rm -f $@ && $(AR) rcsD $@ $^

# Renamed into place, so that a process that has the old library loaded keeps it whole.
# $(call link_library,FLAGS)
link_library = $(Q)$(CXX) -o $@.new $(filter %.o,$^) $(filter %.a,$^) $(filter %.so,$|) $(OUR_LDFLAGS) \
  -Wl,-soname,$(@F) $(LDFLAGS) $(1) && mv $@.new $@

# Order-only: another core library has the same table.
ON_CORE := $(IMPORT_OBJECTS) $(B)/core.a | $(B)/lib/libtf_bn_ops_core.so
$(B)/lib/libtf_bn_ops.so: $(OP_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_LDFLAGS) $(CUDA_LDFLAGS))

$(B)/lib/libtf_bn_ops_override.so: $(B)/cc/kernels/cpu_launch.o $(OVERRIDE_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_LDFLAGS))

$(B)/lib/libtf_bn_ops_optimizer.so: $(OPTIMIZER_OBJECTS)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(TF_LDFLAGS))

$(B)/lib/libtf_bn_ops_xla.so: $(B)/cc/ops/check_shapes.o $(XLA_OBJECTS) $(ON_CORE)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CORE_RPATH) $(TF_CC_LDFLAGS))

$(B)/lib/libtf_bn_ops_core.so: $(CORE_OBJECTS) $(C_API_OBJECTS) $(EXPORT_OBJECTS)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CUDA_LDFLAGS))

$(addprefix $(B)/lib/libtf_bn_ops,.so _override.so _optimizer.so _xla.so _core.so _client.so): \
  $(B)/portable.a $(B)/link.txt mk/exports.map

$(B)/lib/libtf_bn_ops_client.so: $(CLIENT_OBJECTS)
	$(Q)echo '  LINK    $@'
	$(call link_library,$(CLIENT_RPATH) $(TF_CC_LDFLAGS))

$(TOOL_OBJECTS:$(B)/cc/tools/%.o=$(B)/bin/%): $(B)/bin/%: $(B)/cc/tools/%.o
$(EXAMPLES): $(B)/bin/%: $(B)/cc/examples/%.o
# Examples are run where they were built: they get the path of this TensorFlow as well.
$(EXAMPLES): private LOCAL_LDFLAGS = $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(TF_LDFLAGS)))
$(B)/bin/%: $(B)/lib/libtf_bn_ops_client.so $(B)/portable.a $(B)/link.txt
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@.new $(filter %.o,$^) $(filter %.a %.so,$^) $(PROGRAM_LDFLAGS) $(PROGRAM_RPATH) $(LOCAL_LDFLAGS) $(LDFLAGS) $(TF_CC_LDFLAGS)
	$(Q)mv $@.new $@

FUZZED := $(CORE_OBJECTS) $(C_API_OBJECTS) $(B)/cc/client/attribute_string.o
$(FUZZ_TARGETS:%=$(B)/bin/fuzz_%): $(B)/bin/fuzz_%: $(B)/cc/fuzz/%.o $(FUZZED)
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -pthread $(LDFLAGS) -fsanitize=fuzzer
$(FUZZ_TARGETS:%=$(B)/bin/replay_%): $(B)/bin/replay_%: $(B)/cc/fuzz/%.o $(B)/cc/fuzz/replay.o $(FUZZED)
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -pthread $(LDFLAGS)
# The test of many threads: the core, and nothing of Python, for ThreadSanitizer.
$(B)/bin/stress: tests/core/stress.cc $(CORE_OBJECTS) $(C_API_OBJECTS) $(B)/compile.txt
	$(Q)echo '  LINK    $@'
	$(Q)$(CXX) -o $@ $< $(filter %.o,$^) $(CORE_CXXFLAGS) $(CXXFLAGS) -pthread $(LDFLAGS)

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
HEADERS := $(patsubst cc/client/include/%,%,$(wildcard cc/client/include/tf_bn_ops/*.h))
PACKAGE_DIR := $(patsubst %/,%,$(dir $(LIB_DIR)))
INSTALLED := $(addprefix $(LIB_DIR)/,$(LIBRARIES)) $(addprefix $(PACKAGE_DIR)/bin/,$(TOOLS)) \
  $(addprefix $(PACKAGE_DIR)/include/,$(HEADERS))
$(eval $(call remember,$(LIB_DIR)/.environment,$$(KEY)))
$(filter $(LIB_DIR)/%,$(INSTALLED)): $(LIB_DIR)/%: $(B)/lib/%
$(filter $(PACKAGE_DIR)/bin/%,$(INSTALLED)): $(PACKAGE_DIR)/bin/%: $(B)/bin/%
$(filter $(PACKAGE_DIR)/include/%,$(INSTALLED)): $(PACKAGE_DIR)/include/%: cc/client/include/%
$(INSTALLED): $(LIB_DIR)/.environment
	$(Q)mkdir -p $(@D)
	$(Q)cp $(filter-out $<,$^) $@.new && mv $@.new $@
	$(if $(XLA),,$(Q)rm -f $(LIB_DIR)/libtf_bn_ops_xla.so)
endif

# ---- Targets ---------------------------------------------------------------------------------

.PHONY: all gpu gpu-core gpu-test gpu-bench gpu-ptx-test gpu-sass hip examples conformance mutants bench bench-against test sanitize sanitize-core \
  sanitize-threads fuzz fuzz-run matrix aarch64-parts aarch64-test wheel wheels wheel-conformance test-wheel release release-check bazel docs lint lint-python lint-types lint-cxx format clean \
  distclean help

all: $(INSTALLED)  ## Build tf_bn_ops/lib (the default)

gpu:  ## Build tf_bn_ops/lib with GPU kernels; NVCC=/path/to/nvcc CUDA_ARCHS="80 90"
	$(Q)rm -f $(LIB_DIR)/.gpu
	$(Q)$(MAKE) --no-print-directory GPU=1 all
	$(Q)echo '$(CUDA_ARCHS)' > $(LIB_DIR)/.gpu

# Needs g++ and nvcc alone.
gpu-core: $(B)/lib/libtf_bn_ops_core.so  ## Build build/core/lib/libtf_bn_ops_core.so with CUDA, without TensorFlow

# Python with NumPy; not the .venv, which has TensorFlow for the CPU.
GPU_PYTHON = $(if $(filter $(VENV)/bin/python,$(PYTHON)),python3,$(PYTHON))
gpu-test: gpu-core  ## Test the kernels on a GPU; needs Python with NumPy; the ops too if TensorFlow sees the GPU
gpu-bench: gpu-core  ## Measure them, beside PyTorch's where there is one
gpu-test gpu-bench: gpu-%:
	$(Q)'$(GPU_PYTHON)' tools/gpu/$*.py --library=$(B)/lib/libtf_bn_ops_core.so $(ARGS)
	$(if $(filter test,$*),$(Q)if '$(GPU_PYTHON)' tools/gpu/tensorflow_test.py --probe; then \
	  $(MAKE) --no-print-directory PYTHON='$(GPU_PYTHON)' gpu && \
	  '$(GPU_PYTHON)' tools/gpu/tensorflow_test.py; fi)

# What the machine code says; nvdisasm is in the CUDA toolkit and in Triton's wheel.
gpu-sass:  ## Count loads in flight, instructions, registers of the machine code into docs/gpu.md; NVDISASM=, ARGS="--archs 90"
	$(Q)NVDISASM='$(NVDISASM)' python3 tools/gpu/sass.py --nvcc='$(NVCC)' --folder='$(BUILD_DIR)/sass' --docs $(ARGS)

# Nothing is measured there, and a few thousand elements a call are what it takes.
ifneq ($(PTX_SKIPPED),)
gpu-ptx-test:
	$(Q)echo 'gpu-ptx-test: skipped, $(strip $(PTX_SKIPPED)); nothing was tested.'
else
gpu-ptx-test: $(PTX_DIR)/libgpu.so $(PTX_DIR)/kernels.ptx  ## Test nvcc's PTX on a simulated GPU; SIM=folder with libcudasim.so
	$(Q)'$(or $(wildcard $(PYTHON)),python3)' tools/gpu/ptx_test.py --sim='$(SIM)' --library=$(PTX_DIR)/libgpu.so --ptx=$(PTX_DIR)/kernels.ptx $(ARGS)
endif

# The same sources for AMD GPUs; they are compiled, and linked into nothing. hipcc asks the machine
# for its GPUs, and complains on stderr where it has none.
HIPCC ?= hipcc
HIP_ARCHS ?= gfx90a
HIP_OBJECTS := $(patsubst %,$(BUILD_DIR)/hip/%.o,$(wildcard cc/cuda/*.cu cc/cuda/kernels/*.cu))
HIP_COMMAND = '$(HIPCC)' -x hip $(foreach arch,$(HIP_ARCHS),--offload-arch=$(arch)) \
  $(shell tools/list_flags.sh flags mk/hipflags.txt) $(HIPFLAGS) -I.

hip: $(HIP_OBJECTS)  ## Compile the GPU kernels for AMD GPUs, no more; HIPCC=/path/to/hipcc HIP_ARCHS="gfx90a"
	$(Q)echo 'hip: $(words $(HIP_OBJECTS)) files compiled for $(HIP_ARCHS); nothing was run.'
$(HIP_OBJECTS): $(BUILD_DIR)/hip/%.o: % mk/hipflags.txt Makefile
	$(Q)command -v '$(HIPCC)' >/dev/null || { echo "error: no $(HIPCC) found, which make hip needs: install it (Debian/Ubuntu: apt install hipcc) or name yours with make hip HIPCC=/path/to/hipcc." >&2; exit 1; }
	$(Q)echo '  HIPCC   $< ($(HIP_ARCHS))'
	$(Q)mkdir -p $(@D)
	$(Q)$(HIP_COMMAND) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$@.err || { cat $@.err >&2; exit 1; }
-include $(HIP_OBJECTS:.o=.d)

conformance: all  ## Diff the ops against tf.raw_ops and a float64 oracle; ARGS="--cases=2000 --seed=3"
	$(Q)'$(PYTHON)' -m tf_bn_ops conformance $(ARGS)

mutants: $(PYTHON_READY)  ## Check that the conformance run catches every wrong kernel of tests/mutants; ARGS="NAME ..."
	$(Q)'$(PYTHON)' tests/mutants/run.py $(ARGS)

bench: all  ## Measure the ops against TensorFlow and PyTorch; ARGS="--quick"
	$(Q)'$(PYTHON)' tools/bench/bench_command.py $(ARGS)

# LIB: the core library of another build, for instance of another commit.
bench-against: $(LIB_DIR)/libtf_bn_ops_core.so  ## Measure this tree's core library against another build's: LIB=/path/to/libtf_bn_ops_core.so
	$(Q)[ -n '$(LIB)' ] || { echo "error: make bench-against needs LIB=/path/to/libtf_bn_ops_core.so, the library to compare with." >&2; exit 1; }
	$(Q)'$(PYTHON)' tools/bench/bench_command.py --against='$(LIB)' $(ARGS)

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
	$(call pytest,not long and not large)

test-all: all  ## Run these and the long ones: wheels, docs, Bazel, CUDA, examples, mutants, long sweeps
	$(call pytest,not large)

aarch64-parts: $(PYTHON_READY)  ## Fetch what make ARCH=aarch64 needs: compiler, emulator, a Python with TensorFlow; by apt-get and pip
	$(Q)'$(PYTHON)' tools/aarch64/fetch_parts.py $(AARCH64_PARTS)

# The compiler and the Python of this machine are not those of the other.
aarch64-test: all  ## Build for aarch64 and run tests/aarch64 under the emulator, half an hour; skipped without make aarch64-parts
	$(Q)$(call need,pytest)
	+$(Q)[ ! -e $(AARCH64_PARTS)/bin/python ] || $(MAKE) --no-print-directory ARCH=aarch64 CXX='$(AARCH64_CXX)' \
	  PYTHON=$(AARCH64_PARTS)/bin/python GPU= all
	$(Q)'$(PYTHON)' -m pytest -m 'not large' tests/aarch64 $(ARGS)

bitwise-against: all  ## Compare every output bit by bit with another commit: REF=<commit>; ARGS="--cases=500"
	$(Q)'$(PYTHON)' tools/bitwise_against.py --ref='$(or $(REF),HEAD)' $(ARGS)

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

sanitize:  ## Run the core's tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
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

fuzz:  ## Fuzz the checks and parsers for SECONDS=60 in all; needs clang and its libFuzzer
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
VERSIONS ?= 2.16 2.17 2.18 2.19 2.20 2.21
matrix:  ## Build and test with other TensorFlows: VERSIONS="2.16 2.21" ARGS=--every=8; writes the README's table
	$(Q)$(or $(VENV_PYTHON),python3) tools/matrix.py --versions='$(VERSIONS)' --folder='$(ENVIRONMENTS)' $(ARGS)

# Where make matrix keeps an environment for each version; wheels are built in them too.
ENVIRONMENTS ?= $(BUILD_DIR)/matrix

wheel: all  ## Build a wheel for this environment's TensorFlow alone into dist/
	$(Q)$(call need,setuptools)
	$(Q)rm -rf $(BUILD_DIR)/wheel && mkdir -p $(BUILD_DIR)/wheel
	$(Q)'$(PYTHON)' -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(BUILD_DIR)/wheel .
	$(Q)rm -f dist/*_$(ARCH).whl
	$(Q)$(if $(CROSS),PATH="$(AARCH64_PARTS)/patchelf/bin:$$PATH") tools/repair_wheel.sh '$(PYTHON)' $(BUILD_DIR)/wheel/*.whl dist
	$(Q)ls dist/*_$(ARCH).whl

wheels: $(PYTHON_READY)  ## Build the wheel of a release, for all TensorFlows of VERSIONS, into dist/
	$(Q)$(call need,auditwheel)
	$(Q)'$(PYTHON)' tools/release/wheels.py --versions='$(VERSIONS)' --environments='$(ENVIRONMENTS)' $(ARGS)

release-check: $(PYTHON_READY)  ## Rehearse a release: wheels, sdist, fresh installs, SBOM, docs; ARGS="--steps='build metadata'"
	$(Q)$(call need,auditwheel)
	$(Q)'$(PYTHON)' tools/release/check.py --versions='$(VERSIONS)' --environments='$(ENVIRONMENTS)' $(ARGS)

release:  ## Set the version and date the changelog: VERSION=1.2.3
	$(Q)$(or $(VENV_PYTHON),python3) tools/release/new_version.py '$(VERSION)' $(ARGS)

wheel-conformance: $(PYTHON_READY)  ## Write the harness alone as a pure-Python wheel into dist/, for vendors
	$(Q)'$(PYTHON)' tools/conformance_wheel.py dist

test-wheel: wheel  ## Install that wheel into a fresh environment and run the tests there, outside the tree
	$(Q)tools/test_wheel.sh '$(PYTHON)' dist/*_$(ARCH).whl $(TEST_WORKERS) $(ARGS)

docs: $(PYTHON_READY)  ## Build the documentation site into build/docs/site
	$(Q)$(call need,mkdocs)
	$(Q)$(call need,material,mkdocs-material)
	$(Q)$(call need,mkdocstrings_handlers,mkdocstrings[python])
	$(Q)'$(PYTHON)' tools/docs.py $(BUILD_DIR)/docs

# The tests run these three one by one.
lint: lint-python lint-types lint-cxx  ## Check style and types: ruff, mypy, clang-format

PYTHON_SOURCES := tf_bn_ops tools tests setup.py $(wildcard examples)
CXX_SOURCES = $(shell find cc tests -name '*.cc' -o -name '*.h' -o -name '*.cu')
CLANG_FORMAT = '$(PYTHON)' -c 'from clang_format import clang_format; clang_format()'

lint-python: $(PYTHON_READY)
	$(Q)'$(PYTHON)' tools/generate_ops/generate.py --check
	$(Q)$(call need,ruff)
	$(Q)'$(PYTHON)' -m ruff check $(PYTHON_SOURCES)
	$(Q)'$(PYTHON)' -m ruff format --check $(PYTHON_SOURCES)

lint-types: $(PYTHON_READY)
	$(Q)$(call need,mypy)
	$(Q)'$(PYTHON)' -m mypy tf_bn_ops

lint-cxx: $(PYTHON_READY)
	$(Q)$(call need,clang_format,clang-format)
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(CXX_SOURCES)

format: $(PYTHON_READY)  ## Reformat Python and C++ sources in place
	$(Q)$(call need,ruff)
	$(Q)$(call need,clang_format,clang-format)
	$(Q)'$(PYTHON)' tools/generate_ops/generate.py
	$(Q)'$(PYTHON)' -m ruff check --fix $(PYTHON_SOURCES)
	$(Q)'$(PYTHON)' -m ruff format $(PYTHON_SOURCES)
	$(Q)$(CLANG_FORMAT) -i $(CXX_SOURCES)

clean:  ## Remove what was built; .venv stays
	$(Q)rm -rf $(BUILD_DIR) $(LIB_DIR) tf_bn_ops/include tf_bn_ops/bin dist *.egg-info bazel-*

distclean: clean  ## Remove what was built, and .venv
	$(Q)rm -rf $(VENV)

help:  ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'
	@echo 'PYTHON=/path/to/python uses that environment instead of .venv and installs nothing into it.'
