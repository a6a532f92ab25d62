// A pluggable device for the tests of --device: its memory is the host's, its
// streams are synchronous. It has FusedBatchNormV3, _FusedBatchNormEx and their
// gradients of float, by two passes in double. -DFAULT=n plants a fault:
//   1  keeps 1/sqrt(variance + epsilon) terms by epsilon in six decimals
//   2  leaves outputs of empty tensors unwritten
//   3  takes NCHW for NHWC in frozen gradients
//   4  does not mask the gradient of a side input
// -DSAVES_RSTD: reserve_space_2 of training holds the inverse root, as on GPUs.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

#ifndef FAULT
#define FAULT 0
#endif
#ifdef SAVES_RSTD
constexpr bool kSavesRstd = true;
#else
constexpr bool kSavesRstd = false;
#endif

namespace {

constexpr char kType[] = "TOY";

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

// ---- The device
// --------------------------------------------------------------

void Allocate(const SP_Device*, uint64_t size, int64_t,
              SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = aligned_alloc(64, (size + 63) / 64 * 64);
  memory->size = size;
  // What is never written shows.
  if (memory->opaque != nullptr) std::memset(memory->opaque, 0x5a, size);
}
void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  std::free(memory->opaque);
  memory->opaque = nullptr;
}
void* HostAllocate(const SP_Device*, uint64_t size) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}
void HostDeallocate(const SP_Device*, void* memory) { std::free(memory); }
TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return 0; }
TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = int64_t{1} << 30;
  return 1;
}
// A stream, an event or a timer, which are pointers.
template <typename Handle>
void New(const SP_Device*, Handle* handle, TF_Status* status) {
  *handle = reinterpret_cast<Handle>(new char);
  Ok(status);
}
template <typename Handle>
void Free(const SP_Device*, Handle handle) {
  delete reinterpret_cast<char*>(handle);
}
// What is to be done was done, or there is nothing to do.
template <typename... Arguments>
void Done(Arguments... arguments) {
  Ok(std::get<sizeof...(Arguments) - 1>(std::make_tuple(arguments...)));
}
template <typename... Arguments>
void Nothing(Arguments...) {}
SE_EventStatus EventStatus(const SP_Device*, SP_Event) {
  return SE_EVENT_COMPLETE;
}
uint64_t Nanoseconds(SP_Timer) { return 0; }
void* At(void* host) { return host; }
const void* At(const void* host) { return host; }
void* At(SP_DeviceMemoryBase* memory) { return memory->opaque; }
const void* At(const SP_DeviceMemoryBase* memory) { return memory->opaque; }
template <typename To, typename From>
void CopyNow(const SP_Device*, To* to, const From* from, uint64_t size,
             TF_Status* status) {
  std::memcpy(At(to), At(from), size);
  Ok(status);
}
template <typename To, typename From>
void Copy(const SP_Device* device, SP_Stream, To* to, const From* from,
          uint64_t size, TF_Status* status) {
  CopyNow(device, to, from, size, status);
}
void Zero(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* at, uint64_t size,
          TF_Status* s) {
  std::memset(at->opaque, 0, size);
  Ok(s);
}
template <typename Pattern>
void Set(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* at, Pattern pattern,
         uint64_t size, TF_Status* s) {
  std::fill_n(static_cast<Pattern*>(at->opaque), size / sizeof(pattern),
              pattern);
  Ok(s);
}
TF_Bool HostCallback(const SP_Device*, SP_Stream, SE_StatusCallbackFn call,
                     void* argument) {
  TF_Status* status = TF_NewStatus();
  call(argument, status);
  const bool ok = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return ok;
}

void CountDevices(const SP_Platform*, int* count, TF_Status* s) {
  *count = 1;
  Ok(s);
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params,
                  TF_Status* s) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = kType;
  params->device->device_vendor = "tests";
  params->device->pci_bus_id = "0000:00:00.0";
  Ok(s);
}
int32_t NumaNode(const SP_Device*) { return 0; }
int64_t Bandwidth(const SP_Device*) { return 1; }
double Gflops(const SP_Device*) { return 1; }
void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params,
                     TF_Status* s) {
  *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE, nullptr, NumaNode,
                         Bandwidth, Gflops};
  Ok(s);
}
void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params,
                    TF_Status* status) {
  SP_StreamExecutor* e = params->stream_executor;
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = Allocate;
  e->deallocate = Deallocate;
  e->host_memory_allocate = HostAllocate;
  e->host_memory_deallocate = HostDeallocate;
  e->unified_memory_allocate = HostAllocate;
  e->unified_memory_deallocate = HostDeallocate;
  e->get_allocator_stats = AllocatorStats;
  e->device_memory_usage = MemoryUsage;
  e->create_stream = New;
  e->destroy_stream = Free;
  e->create_stream_dependency = Done;
  e->get_stream_status = Done;
  e->create_event = New;
  e->destroy_event = Free;
  e->get_event_status = EventStatus;
  e->record_event = Done;
  e->wait_for_event = Done;
  e->create_timer = New;
  e->destroy_timer = Free;
  e->start_timer = Done;
  e->stop_timer = Done;
  e->memcpy_dtoh = Copy;
  e->memcpy_htod = Copy;
  e->memcpy_dtod = Copy;
  e->sync_memcpy_dtoh = CopyNow;
  e->sync_memcpy_htod = CopyNow;
  e->sync_memcpy_dtod = CopyNow;
  e->block_host_for_event = Done;
  e->block_host_until_done = Done;
  e->synchronize_all_activity = Done;
  e->mem_zero = Zero;
  e->memset = Set;
  e->memset32 = Set;
  e->host_callback = HostCallback;
  Ok(status);
}
void CreateTimerFns(const SP_Platform*, SP_TimerFns* fns, TF_Status* s) {
  *fns = {SP_TIMER_FNS_STRUCT_SIZE, nullptr, Nanoseconds};
  Ok(s);
}

// ---- The kernels
// -------------------------------------------------------------

struct Kernel {
  float epsilon = 0, factor = 1;
  bool training = true, channels_last = true, relu = false;
  int32_t side_inputs = 0;
  size_t rank = 4;
};

std::string String(TF_OpKernelConstruction* context, const char* name,
                   TF_Status* status) {
  int32_t list = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &list, &size, status);
  if (TF_GetCode(status) != TF_OK) return "";
  std::string text(size, ' ');
  TF_OpKernelConstruction_GetAttrString(context, name, &text[0], size, status);
  return text;
}

void* Create(TF_OpKernelConstruction* context) {
  auto* kernel = new Kernel;
  TF_Status* status = TF_NewStatus();
  TF_OpKernelConstruction_GetAttrFloat(context, "epsilon", &kernel->epsilon,
                                       status);
  TF_OpKernelConstruction_GetAttrFloat(context, "exponential_avg_factor",
                                       &kernel->factor, status);
  TF_Bool training = 1;
  TF_OpKernelConstruction_GetAttrBool(context, "is_training", &training,
                                      status);
  kernel->training = training;
  const std::string format = String(context, "data_format", status);
  kernel->channels_last = format.back() == 'C';
  kernel->rank = format.size();
  // Attrs of the ops behind an activation alone: the others keep the defaults.
  kernel->relu = String(context, "activation_mode", status) == "Relu";
  TF_OpKernelConstruction_GetAttrInt32(context, "num_side_inputs",
                                       &kernel->side_inputs, status);
  TF_DeleteStatus(status);
  return kernel;
}
void Delete(void* kernel) { delete static_cast<Kernel*>(kernel); }

// 1/sqrt(variance + epsilon), what a fault may keep.
double Rstd(double variance, float epsilon) {
  if (FAULT == 1) {
    static std::mutex mutex;
    static auto* kept = new std::map<std::string, float>;
    char key[64];
    std::snprintf(key, sizeof key, "%.6f", epsilon);
    std::lock_guard<std::mutex> lock(mutex);
    epsilon = kept->emplace(key, epsilon).first->second;
  }
  return 1 / std::sqrt(variance + epsilon);
}

// A call: inputs, outputs, and where an element of a channel is.
class Call {
 public:
  Call(const Kernel& kernel, TF_OpKernelContext* context, int x, int vector,
       int vectors, int read_vectors)
      : context_(context), status_(TF_NewStatus()) {
    for (int i = 0; i < TF_NumInputs(context); ++i) {
      TF_Tensor* tensor = nullptr;
      TF_GetInput(context, i, &tensor, status_);
      inputs_.push_back(tensor);
    }
    for (int i = 0; i < TF_NumDims(inputs_[x]); ++i)
      dims_.push_back(TF_Dim(inputs_[x], i));
    if (dims_.size() != kernel.rank) {
      Fail("x must have the dimensions of data_format");
      return;
    }
    const size_t axis = kernel.channels_last ? dims_.size() - 1 : 1;
    channels = dims_[axis];
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (i < axis) outer *= dims_[i];
      if (i > axis) inner *= dims_[i];
    }
    for (int i = vector; i < vector + vectors; ++i) {
      // What is not read may have any size, but no other rank.
      const bool read = i < vector + read_vectors;
      if (TF_NumDims(inputs_[i]) != 1 ||
          (read && TF_Dim(inputs_[i], 0) != channels)) {
        Fail("scale, offset, mean and variance must have the channels");
        return;
      }
    }
    for (int i = 0; i < x; ++i) {
      bool same = TF_NumDims(inputs_[i]) == TF_NumDims(inputs_[x]);
      for (size_t d = 0; same && d < dims_.size(); ++d)
        same = TF_Dim(inputs_[i], d) == dims_[d];
      if (!same) {
        Fail("x and y_backprop must have the same shape");
        return;
      }
    }
    ok = true;
  }
  ~Call() {
    for (TF_Tensor* t : inputs_) TF_DeleteTensor(t);
    for (TF_Tensor* t : outputs_) TF_DeleteTensor(t);
    TF_DeleteStatus(status_);
  }

  const float* in(int i) const {
    return static_cast<const float*>(TF_TensorData(inputs_[i]));
  }
  float* view(int i) { return Output(i, dims_); }
  float* vector(int i) { return Output(i, {channels}); }
  void placeholder(int i) { Output(i, {0}); }
  int64_t rows() const { return outer * inner; }
  int64_t at(int64_t c, int64_t row, bool swapped = false) const {
    if (swapped) return row * channels + c;
    return (row / inner * channels + c) * inner + row % inner;
  }
  void Fail(const char* what) {
    TF_SetStatus(status_, TF_INVALID_ARGUMENT, what);
    TF_OpKernelContext_Failure(context_, status_);
  }

  bool ok = false;
  int64_t channels = 0, outer = 1, inner = 1;

 private:
  float* Output(int i, const std::vector<int64_t>& dims) {
    size_t count = 1;
    for (int64_t n : dims) count *= n;
    outputs_.push_back(TF_AllocateOutput(context_, i, TF_FLOAT, dims.data(),
                                         dims.size(), 4 * count, status_));
    return static_cast<float*>(TF_TensorData(outputs_.back()));
  }

  TF_OpKernelContext* context_;
  TF_Status* status_;
  std::vector<int64_t> dims_;
  std::vector<TF_Tensor*> inputs_, outputs_;
};

void Forward(void* pointer, TF_OpKernelContext* context) {
  const auto& k = *static_cast<Kernel*>(pointer);
  const bool reads = !k.training || k.factor != 1;
  Call call(k, context, 0, 1, 4, reads ? 4 : 2);
  if (!call.ok) return;
  const float *x = call.in(0), *scale = call.in(1), *offset = call.in(2);
  const float* side = k.side_inputs > 0 ? call.in(5) : nullptr;
  float* y = call.view(0);
  float* out[4];
  for (int i = 0; i < 4; ++i) out[i] = call.vector(i + 1);
  call.placeholder(5);
  const int64_t m = call.rows();
  if (FAULT == 2 && m == 0) return;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t c = 0; c < call.channels; ++c) {
    double mean = 0, variance = 0;
    if (!k.training) {
      mean = call.in(3)[c];
      variance = call.in(4)[c];
    }
    if (k.training && m > 0) {
      for (int64_t r = 0; r < m; ++r) mean += x[call.at(c, r)];
      mean /= m;
      double rest = 0;
      for (int64_t r = 0; r < m; ++r) {
        const double d = x[call.at(c, r)] - mean;
        rest += d;
        variance += d * d;
      }
      variance = (variance - rest * rest / m) / m;
    }
    double batch[2] = {mean, variance};
    if (k.training) {
      if (m > 1) batch[1] = variance * m / (m - 1);
      if (k.factor != 1) {
        for (int i : {0, 1}) {
          batch[i] = (1 - k.factor) * static_cast<double>(call.in(3 + i)[c]) +
                     k.factor * batch[i];
        }
      }
    }
    const double rstd = Rstd(variance, k.epsilon);
    for (int i : {0, 1}) {
      out[i][c] = k.training && m == 0 ? nan : static_cast<float>(batch[i]);
    }
    out[2][c] = static_cast<float>(mean);
    out[3][c] =
        static_cast<float>(k.training && kSavesRstd && m > 0 ? rstd : variance);
    for (int64_t r = 0; r < m; ++r) {
      const int64_t at = call.at(c, r);
      double v = (x[at] - mean) * rstd * scale[c] + offset[c];
      if (side != nullptr) v += side[at];
      y[at] = static_cast<float>(k.relu && v < 0 ? 0 : v);
    }
  }
}

void Backward(void* pointer, TF_OpKernelContext* context) {
  const auto& k = *static_cast<Kernel*>(pointer);
  Call call(k, context, 1, 2, 3, 3);
  if (!call.ok) return;
  const float *dy = call.in(0), *x = call.in(1), *scale = call.in(2);
  float* dx = call.view(0);
  float *dscale = call.vector(1), *doffset = call.vector(2);
  call.placeholder(3);
  call.placeholder(4);
  float* side = k.side_inputs > 0 ? call.view(5) : nullptr;
  const float* y = k.relu ? call.in(7) : nullptr;
  const int64_t m = call.rows();
  if (FAULT == 2 && m == 0) return;
  const bool swapped = FAULT == 3 && !k.training;
  const auto gradient = [&](int64_t at) {
    return y == nullptr || y[at] > 0 ? dy[at] : 0.0f;
  };
  for (int64_t c = 0; c < call.channels; ++c) {
    const double mean = call.in(3)[c], given = call.in(4)[c];
    const bool is_rstd = kSavesRstd && k.training;
    const double rstd = is_rstd ? given : Rstd(given, k.epsilon);
    double sum = 0, product = 0;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t at = call.at(c, r, swapped);
      sum += gradient(at);
      product += gradient(at) * (x[at] - mean);
    }
    for (int64_t r = 0; r < m; ++r) {
      const int64_t at = call.at(c, r, swapped);
      double inside = gradient(at);
      if (k.training)
        inside += -sum / m - (x[at] - mean) * rstd * rstd * product / m;
      dx[at] = static_cast<float>(scale[c] * rstd * inside);
      if (side != nullptr) side[at] = FAULT == 4 ? dy[at] : gradient(at);
    }
    dscale[c] = static_cast<float>(m > 0 ? rstd * product : 0);
    doffset[c] = static_cast<float>(sum);
  }
}

void Register(const char* op, void (*compute)(void*, TF_OpKernelContext*)) {
  TF_Status* status = TF_NewStatus();
  TF_KernelBuilder* builder =
      TF_NewKernelBuilder(op, kType, Create, compute, Delete);
  for (const char* attr : {"T", "U"})
    TF_KernelBuilder_TypeConstraint(builder, attr, TF_FLOAT, status);
  TF_RegisterKernelBuilder(op, builder, status);
  TF_DeleteStatus(status);
}

}  // namespace

extern "C" {

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = kType;
  params->platform->type = kType;
  params->platform->use_bfc_allocator = 0;
  SP_PlatformFns* fns = params->platform_fns;
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = CountDevices;
  fns->create_device = CreateDevice;
  fns->destroy_device = Nothing;
  fns->create_device_fns = CreateDeviceFns;
  fns->destroy_device_fns = Nothing;
  fns->create_stream_executor = CreateExecutor;
  fns->destroy_stream_executor = Nothing;
  fns->create_timer_fns = CreateTimerFns;
  fns->destroy_timer_fns = Nothing;
  params->destroy_platform = Nothing;
  params->destroy_platform_fns = Nothing;
  Ok(status);
}

void TF_InitKernel() {
  Register("FusedBatchNormV3", Forward);
  Register("FusedBatchNormGradV3", Backward);
  Register("_FusedBatchNormEx", Forward);
  Register("_FusedBatchNormGradEx", Backward);
}

}  // extern "C"
