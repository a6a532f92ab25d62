// What another library brings along, for the tests of candidates: ops with a
// batch-norm gradient, and a pluggable device.
//
// The ops are of float, NHWC and NCHW. Some have names and an order of their
// own, one right and one with a sign wrong, for the tests of mappings; others
// the OpDef of FusedBatchNormGradV2, one right and each other one with a fault
// that a call on its own does not show, for the execution modes that look for
// state.
//
// The device TOY, for --device, has FusedBatchNormV3, _FusedBatchNormEx and
// their gradients of float. Its memory is the host's, its streams are
// synchronous. TOY_SAVES_RSTD in the environment: reserve_space_2 of training
// holds the inverse root, as on GPUs. TOY_FAULT plants a fault: see `fault_`.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

namespace tf = ::tensorflow;

constexpr char kDevice[] = "TOY";

// ---- The kernels ------------------------------------------------------------

// Channels that a global of a faulty kernel has room for.
constexpr int64_t kMostChannels = 1 << 16;

struct View {
  int64_t outer = 1, channels = 1, inner = 1;
  int64_t Rows() const { return outer * inner; }
  // Where the element of a channel in a row lies.
  int64_t At(int64_t channel, int64_t row) const {
    return (row / inner * channels + channel) * inner + row % inner;
  }
};

// What a faulty kernel keeps from its first call with a key.
template <typename Value>
Value Kept(const std::string& key, const Value& value) {
  static std::mutex mutex;
  static auto* const kept = new std::map<std::string, Value>;
  std::lock_guard<std::mutex> lock(mutex);
  return kept->emplace(key, value).first->second;
}

class BatchNorm : public tf::OpKernel {
 public:
  explicit BatchNorm(tf::OpKernelConstruction* context)
      : OpKernel(context), fault_(type_string()) {
    if (context->device_type() == tf::DeviceType(kDevice)) {
      const char* const fault = std::getenv("TOY_FAULT");
      fault_ = fault != nullptr ? fault : "";
      saves_rstd_ = std::getenv("TOY_SAVES_RSTD") != nullptr;
    }
    is_vendors_ = fault_.rfind("Vendor", 0) == 0;
    OP_REQUIRES_OK(
        context, context->GetAttr(is_vendors_ ? "eps" : "epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("is_training", &training_));
    OP_REQUIRES_OK(context, context->GetAttr("data_format", &format_));
    OP_REQUIRES(context, format_.size() == 4 || format_.size() == 5,
                absl::InvalidArgumentError("data_format is unknown"));
    // Attrs that some ops have.
    std::string activation;
    context->GetAttr("exponential_avg_factor", &factor_).IgnoreError();
    context->GetAttr("num_side_inputs", &side_inputs_).IgnoreError();
    context->GetAttr("activation_mode", &activation).IgnoreError();
    relu_ = activation == "Relu";
  }

 protected:
  // The view of an input, whose shape another one must have. Of the vectors,
  // those that are not read may have any size, but no other rank.
  absl::Status Look(tf::OpKernelContext* context, int input, int other,
                    int vector, int vectors, int read, View* view) const {
    const tf::TensorShape& shape = context->input(input).shape();
    if (shape.dims() != static_cast<int>(format_.size()) ||
        context->input(other).shape() != shape) {
      return absl::InvalidArgumentError(
          "x and y_backprop must have the dimensions of data_format");
    }
    const int axis = format_.back() == 'C' ? shape.dims() - 1 : 1;
    for (int i = 0; i < shape.dims(); ++i) {
      (i < axis    ? view->outer
       : i == axis ? view->channels
                   : view->inner) *= shape.dim_size(i);
    }
    for (int i = vector; i < vector + vectors; ++i) {
      const tf::TensorShape& its = context->input(i).shape();
      if (its.dims() != 1 ||
          (i < vector + read && its.dim_size(0) != view->channels)) {
        return absl::InvalidArgumentError("a vector has other channels");
      }
    }
    if (fault_ == "CachesByDimensionsBnGrad") {
      *view = Kept(shape.DebugString(), *view);
    }
    return absl::OkStatus();
  }

  static float* Output(tf::OpKernelContext* context, int i,
                       const tf::TensorShape& shape) {
    tf::Tensor* tensor = nullptr;
    TF_CHECK_OK(context->allocate_output(i, shape, &tensor));
    return tensor->flat<float>().data();
  }

  double Rstd(double variance) const {
    double epsilon = epsilon_;
    if (fault_ == "KeepsEpsilonBySixDecimals") {
      epsilon = Kept(std::to_string(epsilon), epsilon);
    }
    return 1 / std::sqrt(variance + epsilon);
  }

  // The op's own name, or what TOY_FAULT says: KeepsEpsilonBySixDecimals,
  // EmptyOutputsUnwritten, FrozenLayoutSwapped, SideInputNotMasked.
  std::string fault_;
  bool is_vendors_, saves_rstd_ = false;
  float epsilon_, factor_ = 1;
  bool training_, relu_ = false;
  int side_inputs_ = 0;
  std::string format_;
};

class Forward final : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

  void Compute(tf::OpKernelContext* context) override {
    const bool averages = training_ && factor_ != 1;
    View view;
    OP_REQUIRES_OK(context, Look(context, 0, 0, 1, 4,
                                 training_ && !averages ? 2 : 4, &view));
    const auto in = [&](int i) {
      return context->input(i).flat<float>().data();
    };
    const float *const x = in(0), *const scale = in(1), *const offset = in(2);
    const float* const side = side_inputs_ > 0 ? in(5) : nullptr;
    float* const y = Output(context, 0, context->input(0).shape());
    float* out[4];
    for (int i = 0; i < 4; ++i) {
      out[i] = Output(context, i + 1, tf::TensorShape({view.channels}));
    }
    if (context->num_outputs() > 5) Output(context, 5, tf::TensorShape({0}));
    const int64_t rows = view.Rows();
    const bool by_arrival =
        fault_ == "SumsByArrivalBn" && view.channels * rows >= int64_t{1} << 20;
    if (fault_ == "EmptyOutputsUnwritten" && rows == 0) return;
    for (int64_t c = 0; c < view.channels; ++c) {
      double mean = training_ ? 0 : in(3)[c],
             variance = training_ ? 0 : in(4)[c];
      if (training_ && rows > 0) {
        mean = Sum(context, by_arrival, rows,
                   [&](int64_t r) { return x[view.At(c, r)]; }) /
               rows;
        double rest = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double d = x[view.At(c, r)] - mean;
          rest += d;
          variance += d * d;
        }
        variance = (variance - rest * rest / rows) / rows;
      }
      double batch[] = {mean, variance};
      if (training_ && rows > 1) batch[1] = variance * rows / (rows - 1);
      for (int i : {0, 1}) {
        if (averages) {
          batch[i] = (1 - factor_) * static_cast<double>(in(3 + i)[c]) +
                     factor_ * batch[i];
        }
        out[i][c] = training_ && rows == 0
                        ? std::numeric_limits<float>::quiet_NaN()
                        : static_cast<float>(batch[i]);
      }
      const double rstd = Rstd(variance);
      out[2][c] = static_cast<float>(mean);
      out[3][c] = static_cast<float>(
          training_ && saves_rstd_ && rows > 0 ? rstd : variance);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t e = view.At(c, r);
        double v = (x[e] - mean) * rstd * scale[c] + offset[c];
        if (side != nullptr) v += side[e];
        y[e] = static_cast<float>(relu_ && v < 0 ? 0 : v);
      }
    }
  }

 private:
  // By arrival, each thread adds what it has to a float when it is there.
  template <typename Terms>
  static double Sum(tf::OpKernelContext* context, bool by_arrival, int64_t rows,
                    const Terms& terms) {
    const auto part = [&](int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t r = begin; r < end; ++r) sum += terms(r);
      return sum;
    };
    if (!by_arrival) return part(0, rows);
    std::mutex mutex;
    float total = 0;
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        rows, /*cost_per_unit=*/1000, [&](int64_t begin, int64_t end) {
          const double sum = part(begin, end);
          std::lock_guard<std::mutex> lock(mutex);
          total += static_cast<float>(sum);
        });
    return total;
  }
};

class Gradient final : public BatchNorm {
 public:
  explicit Gradient(tf::OpKernelConstruction* context) : BatchNorm(context) {
    if (is_vendors_) dy_ = 1, x_ = 0, dx_ = 2, dscale_ = 0, doffset_ = 1;
  }

  void Compute(tf::OpKernelContext* context) override {
    View view;
    OP_REQUIRES_OK(context, Look(context, x_, dy_, 2, 3, 3, &view));
    const bool is_global = fault_ == "MeansInAGlobalBnGrad";
    OP_REQUIRES(context, view.channels <= kMostChannels || !is_global,
                absl::InvalidArgumentError("too many channels"));
    const tf::TensorShape &shape = context->input(x_).shape(),
                          vector({view.channels});
    float* const dx = Output(context, dx_, shape);
    float* const dscale = Output(context, dscale_, vector);
    float* const doffset = Output(context, doffset_, vector);
    for (int i : {3, 4}) Output(context, i, tf::TensorShape({0}));
    float* const side = side_inputs_ > 0 ? Output(context, 5, shape) : nullptr;
    const int64_t rows = view.Rows(), size = shape.num_elements();
    if (fault_ == "EmptyOutputsUnwritten" && rows == 0) return;
    if (fault_ == "FrozenLayoutSwapped" && !training_) {
      view = {rows, view.channels, 1};
    }
    const auto in = [&](int i) {
      return context->input(i).flat<float>().data();
    };
    const float *const dy = in(dy_), *const x = in(x_), *const scale = in(2);
    const float* const y = relu_ ? in(7) : nullptr;
    const auto masked = [&](int64_t e) {
      return y == nullptr || y[e] > 0 ? dy[e] : 0;
    };
    static float means[kMostChannels];
    const float* const mean = is_global ? means : in(3);
    tf::Tensor scratch;
    OP_REQUIRES_OK(
        context,
        context->allocate_temp(tf::DT_DOUBLE,
                               tf::TensorShape({2 * view.channels}), &scratch));
    double* sums = scratch.flat<double>().data();
    const bool locks = fault_ == "LocksEachPassBnGrad";
    if (fault_ == "MemberInComputeBnGrad" || locks) {
      std::lock_guard<std::mutex> lock(mutex_);
      member_.resize(2 * view.channels);
      sums = member_.data();
    }
    // Another path is taken from the third call on.
    const bool is_tuned =
        fault_ == "TunesItselfBnGrad" && calls_.fetch_add(1) >= 2;
    const auto reduce = [&] {
      if (is_global) std::copy_n(in(3), view.channels, means);
      for (int64_t c = 0; c < view.channels; ++c) {
        double sum = fault_ == "ScratchNotClearedBnGrad" ? sums[2 * c] : 0;
        double product = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t e = view.At(c, r);
          sum += masked(e);
          product += masked(e) * (static_cast<double>(x[e]) - mean[c]);
        }
        // As if another order of summation had cost the last digit.
        if (is_tuned) sum *= 1 + 1e-7;
        if (fault_ == "ReadsBehindTheTensorBnGrad" && c + 1 == view.channels) {
          for (int64_t e = size; e % 4 != 0; ++e) sum += dy[e];
        }
        sums[2 * c] = sum;
        sums[2 * c + 1] = product;
      }
    };
    const auto apply = [&] {
      for (int64_t c = 0; c < view.channels; ++c) {
        const double rstd = RstdOf(in(4) + c);
        double slope = rstd * rstd * sums[2 * c + 1] / rows;
        if (fault_ == "VendorBnGradWrongSign") slope = -slope;
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t e = view.At(c, r);
          double inside = masked(e);
          if (training_) {
            inside -= sums[2 * c] / rows;
            inside -= (static_cast<double>(x[e]) - mean[c]) * slope;
          }
          if (side != nullptr) {
            side[e] = fault_ == "SideInputNotMasked" ? dy[e] : masked(e);
          }
          if (fault_ == "UnwrittenTailBnGrad" && e >= size / 4 * 4) continue;
          dx[e] = static_cast<float>(scale[c] * rstd * inside);
        }
        const double before = fault_ == "AddsToItsOutputBnGrad" ? dscale[c] : 0;
        const double product = rows > 0 ? rstd * sums[2 * c + 1] : 0;
        dscale[c] = static_cast<float>(before + product);
        const bool is_last_of_odd = view.channels % 2 && c + 1 == view.channels;
        if (fault_ == "UnwrittenChannelBnGrad" && is_last_of_odd) continue;
        doffset[c] = static_cast<float>(sums[2 * c]);
      }
    };
    const auto run_pass = [&](const auto& pass) {
      std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
      if (locks) lock.lock();
      pass();
    };
    run_pass(reduce);
    run_pass(apply);
    if (fault_ == "CentersItsInputBnGrad") {
      for (int64_t c = 0; c < view.channels; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
          const_cast<float*>(x)[view.At(c, r)] -= mean[c];
        }
      }
    }
  }

 private:
  double RstdOf(const float* variance) const {
    if (saves_rstd_ && training_) return *variance;
    const double rstd = Rstd(*variance);
    if (fault_ != "KeepsRstdByAddressBnGrad") return rstd;
    return Kept(std::to_string(reinterpret_cast<uintptr_t>(variance)), rstd);
  }

  // Positions of inputs and outputs.
  int dy_ = 0, x_ = 1, dx_ = 0, dscale_ = 1, doffset_ = 2;
  std::mutex mutex_;
  std::vector<double> member_;
  std::atomic<int> calls_{0};
};

#define REGISTER_FLOAT(name, device, kernel) \
  REGISTER_KERNEL_BUILDER(                   \
      Name(name).Device(device).TypeConstraint<float>("T"), kernel)

#define STATEFUL(name)                                           \
  REGISTER_OP(name)                                              \
      .Input("y_backprop: T")                                    \
      .Input("x: T")                                             \
      .Input("scale: float")                                     \
      .Input("reserve_space_1: U")                               \
      .Input("reserve_space_2: U")                               \
      .Output("x_backprop: T")                                   \
      .Output("scale_backprop: U")                               \
      .Output("offset_backprop: U")                              \
      .Output("reserve_space_3: U")                              \
      .Output("reserve_space_4: U")                              \
      .Attr("T: {half, bfloat16, float}")                        \
      .Attr("U: {float}")                                        \
      .Attr("epsilon: float = 0.0001")                           \
      .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")            \
      .Attr("is_training: bool = true")                          \
      .SetShapeFn(tf::shape_inference::FusedBatchNormGradShape); \
  REGISTER_FLOAT(name, tf::DEVICE_CPU, Gradient)

STATEFUL("StatelessBnGrad");          // Right.
STATEFUL("UnwrittenTailBnGrad");      // Leaves elements unwritten.
STATEFUL("ScratchNotClearedBnGrad");  // Adds to memory that is not cleared.
// Keeps strides by the dimensions alone.
STATEFUL("CachesByDimensionsBnGrad");
STATEFUL("MemberInComputeBnGrad");  // Keeps sums in the kernel, in Compute.
// Leaves offset_backprop of the last channel unwritten where channels are odd.
STATEFUL("UnwrittenChannelBnGrad");
STATEFUL("AddsToItsOutputBnGrad");  // Adds to an output that is not cleared.
// Sums up to the next multiple of four elements, behind the tensor.
STATEFUL("ReadsBehindTheTensorBnGrad");
// Keeps rstd by the address of the variance, as if that were a constant.
STATEFUL("KeepsRstdByAddressBnGrad");
// Tunes itself: from its third call on sums have another last digit.
STATEFUL("TunesItselfBnGrad");
STATEFUL("MeansInAGlobalBnGrad");   // Keeps the means of the call in a global.
STATEFUL("CentersItsInputBnGrad");  // Subtracts the mean from x, in place.
// Locks the sums that it keeps in each pass, but not from one to the other.
STATEFUL("LocksEachPassBnGrad");

#define FORWARD(name)                                        \
  REGISTER_OP(name)                                          \
      .Input("x: T")                                         \
      .Input("scale: U")                                     \
      .Input("offset: U")                                    \
      .Input("mean: U")                                      \
      .Input("variance: U")                                  \
      .Output("y: T")                                        \
      .Output("batch_mean: U")                               \
      .Output("batch_variance: U")                           \
      .Output("reserve_space_1: U")                          \
      .Output("reserve_space_2: U")                          \
      .Attr("T: {half, bfloat16, float}")                    \
      .Attr("U: {float}")                                    \
      .Attr("epsilon: float = 0.0001")                       \
      .Attr("exponential_avg_factor: float = 1.0")           \
      .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")        \
      .Attr("is_training: bool = true")                      \
      .SetShapeFn(tf::shape_inference::FusedBatchNormShape); \
  REGISTER_FLOAT(name, tf::DEVICE_CPU, Forward)

FORWARD("PlainBn");          // Right.
FORWARD("SumsByArrivalBn");  // Of 2^20 elements on.

#define VENDOR(name)                                  \
  REGISTER_OP(name)                                   \
      .Input("activations: float")                    \
      .Input("grad: float")                           \
      .Input("gamma: float")                          \
      .Input("mu: float")                             \
      .Input("var: float")                            \
      .Output("dgamma: float")                        \
      .Output("dbeta: float")                         \
      .Output("dx: float")                            \
      .Output("unused_1: float")                      \
      .Output("unused_2: float")                      \
      .Attr("eps: float = 1e-3")                      \
      .Attr("data_format: string")                    \
      .Attr("is_training: bool = true")               \
      .SetShapeFn(tf::shape_inference::UnknownShape); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), Gradient)

VENDOR("Vendor>BnGrad");
VENDOR("VendorBnGradWrongSign");

REGISTER_FLOAT("FusedBatchNormV3", kDevice, Forward);
REGISTER_FLOAT("_FusedBatchNormEx", kDevice, Forward);
REGISTER_FLOAT("FusedBatchNormGradV3", kDevice, Gradient);
REGISTER_FLOAT("_FusedBatchNormGradEx", kDevice, Gradient);

// ---- The device -------------------------------------------------------------

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

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
  params->device->hardware_name = kDevice;
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

}  // namespace

extern "C" {

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = kDevice;
  params->platform->type = kDevice;
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

}  // extern "C"
