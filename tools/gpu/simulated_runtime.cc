// What libcudasim.so, the simulated GPU of make gpu-ptx-test, lacks of the CUDA
// runtime.

#include <cstddef>
#include <cstdint>

extern "C" {

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes,
                         void* cuda_stream);

// Within device memory, which is the only `kind` that is called.
__attribute__((visibility("default"))) int cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, int /*kind*/, void* cuda_stream) {
  return cuMemcpyDtoDAsync_v2(reinterpret_cast<uint64_t>(to),
                              reinterpret_cast<uint64_t>(from), bytes,
                              cuda_stream);
}

}  // extern "C"
