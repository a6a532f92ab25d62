# GPU kernels and their tests: included by the Makefile, whose variables it uses. `make gpu` builds them
# into the package; gpu-core and gpu-test need g++, nvcc and a GPU, and no TensorFlow.

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

# Beside the objects of the CPU build, which knows nothing of them.
GPU_DIR := $(BUILD_DIR)/gpu/$(KEY)
gpu_objects = $(patsubst %,$(GPU_DIR)/%.o,$(sort $(wildcard cc/$(1))))
CUDA_OBJECTS := $(if $(GPU),$(call gpu_objects,gpu/*.cu) $(call gpu_objects,gpu/kernels/*.cu))
GPU_C_API_OBJECTS := $(if $(GPU),$(call gpu_objects,c_api/gpu/*.cc))
GPU_OP_OBJECTS := $(if $(GPU),$(call gpu_objects,tf/kernels/gpu/*.cc))
GPU_OBJECTS := $(CUDA_OBJECTS) $(GPU_C_API_OBJECTS) $(GPU_OP_OBJECTS)
ifneq ($(TF_VERSION),)
ifneq ($(GPU),)
CUDA_INPUTS := $(NVCC) $(CUDA_VERSION) | $(CXX) | $(OUR_NVCCFLAGS) | $(NVCCFLAGS)
$(eval $(call remember,$(GPU_DIR)/nvcc.txt,$$(CUDA_INPUTS)))
$(CUDA_OBJECTS): $(GPU_DIR)/%.o: % $(GPU_DIR)/nvcc.txt
	$(Q)echo '  NVCC    $< (sm_$(subst $(empty) $(empty), sm_,$(strip $(CUDA_ARCHS))))'
	$(Q)'$(NVCC)' -ccbin $(lastword $(CXX)) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< $(OUR_NVCCFLAGS) $(NVCCFLAGS)
$(GPU_C_API_OBJECTS): private LOCAL_CXXFLAGS = $(CORE_CXXFLAGS)
$(GPU_OP_OBJECTS): private LOCAL_CXXFLAGS = $(TF_ALL_CXXFLAGS)
$(GPU_C_API_OBJECTS) $(GPU_OP_OBJECTS): $(GPU_DIR)/%.o: % $(B)/compile.txt
	$(compile)
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
  tools/gpu/simulated_runtime.cc $(PTX_DIR)/nvcc.txt
	$(Q)$(CXX) -shared -fPIC -o $@ $(filter %.o %.cc,$^) -L'$(SIM)' -lcudasim -Wl,-rpath,'$(abspath $(SIM))'
-include $(PTX_OBJECTS:.o=.d)

$(B)/lib/libtf_bn_ops.so: $(CUDA_OBJECTS) $(GPU_OP_OBJECTS)
$(B)/lib/libtf_bn_ops_core.so: $(CUDA_OBJECTS) $(GPU_C_API_OBJECTS)
endif
endif

# ---- Targets ---------------------------------------------------------------------------------

.PHONY: gpu-core gpu-test gpu-ptx-test

# Needs g++ and nvcc alone.
gpu-core: $(B)/lib/libtf_bn_ops_core.so  ## Build build/core/lib/libtf_bn_ops_core.so with CUDA, without TensorFlow

# Python with NumPy; not the .venv, which has TensorFlow for the CPU.
GPU_PYTHON = $(if $(filter $(VENV)/bin/python,$(PYTHON)),python3,$(PYTHON))
gpu-test: gpu-core  ## Test the kernels on a GPU; needs Python with NumPy; the ops too if TensorFlow sees the GPU
	$(Q)'$(GPU_PYTHON)' tools/gpu/test.py --library=$(B)/lib/libtf_bn_ops_core.so $(ARGS)
	$(Q)if '$(GPU_PYTHON)' tools/gpu/tensorflow_test.py --probe; then \
	  $(MAKE) --no-print-directory PYTHON='$(GPU_PYTHON)' gpu && \
	  '$(GPU_PYTHON)' tools/gpu/tensorflow_test.py; fi

# Nothing is measured there, and a few thousand elements a call are what it takes.
ifneq ($(PTX_SKIPPED),)
gpu-ptx-test:
	$(Q)echo 'gpu-ptx-test: skipped, $(strip $(PTX_SKIPPED)); nothing was tested.'
else
gpu-ptx-test: $(PTX_DIR)/libgpu.so $(PTX_DIR)/kernels.ptx  ## Test nvcc's PTX on a simulated GPU; SIM=folder with libcudasim.so
	$(Q)'$(or $(wildcard $(PYTHON)),python3)' tools/gpu/ptx_test.py --sim='$(SIM)' --library=$(PTX_DIR)/libgpu.so --ptx=$(PTX_DIR)/kernels.ptx $(ARGS)
endif
