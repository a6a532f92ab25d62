// Several callers at once on one busy pool of threads, and on threads of their
// own: what `make sanitize` runs under ThreadSanitizer.
//
//   stress SECONDS [CALLERS]
//
// Every caller computes batch normalization with a ReLU, its gradients of both
// orders and the elements of a synchronised one again and again, through the
// backend with the shared pool and through the C ABI. Exit status 1 unless all
// results are bitwise identical to those of one thread.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/executor.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/formulas/second_order.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"

namespace {

// As TensorFlow's pool: work waits in a queue, and a helper may come to it long
// after its caller has returned.
class Pool final : public tf_bn_ops::Executor {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Loop(); });
    }
  }
  ~Pool() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int NumThreads() const override {
    return static_cast<int>(threads_.size()) + 1;
  }
  void Schedule(std::function<void()> work) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

// Both partitions, one pass and two, several blocks; above the size below which
// calls stay on one thread.
constexpr tf_bn_ops::View kViews[] = {
    {4000, 40, 1}, {9000, 3, 1}, {8, 300, 49}, {3, 7, 9000}};

// What is computed. kElements, the second pass of a synchronised gradient, runs
// through the C ABI alone.
enum class Kind { kForward, kGradient, kBehindRelu, kSecondOrder, kElements };
constexpr Kind kKinds[] = {Kind::kForward, Kind::kGradient, Kind::kBehindRelu,
                           Kind::kSecondOrder, Kind::kElements};

// A call on one view.
struct Problem {
  tf_bn_ops::View view;
  bool is_training;
  Kind kind;
  // Inputs of view shape, then of shape [channels].
  std::vector<float> y_backprop, x, y, x_backprop_grad;
  std::vector<float> scale, offset, mean, variance, scale_backprop_grad,
      offset_backprop_grad;
  std::vector<double> wide_mean, wide_variance, sum_dy, sum_dy_xmu;

  Problem(const tf_bn_ops::View& v, bool training, Kind what)
      : view(v), is_training(training), kind(what) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.5f, 1);
    for (auto* array : {&y_backprop, &x, &y, &x_backprop_grad}) {
      array->resize(tf_bn_ops::NumElements(v));
      for (float& value : *array) value = normal(random);
    }
    for (auto* array : {&scale, &offset, &mean, &scale_backprop_grad,
                        &offset_backprop_grad}) {
      array->resize(v.channels);
      for (float& value : *array) value = normal(random);
    }
    variance.assign(v.channels, 2);
    for (auto* array : {&wide_mean, &sum_dy, &sum_dy_xmu}) {
      array->resize(v.channels);
      for (double& value : *array) value = normal(random);
    }
    wide_variance.assign(v.channels, 2);
  }
};

// Outputs of view shape and of shape [channels]; no formula has more.
struct Result {
  std::vector<float> tensors[2], vectors[4];

  explicit Result(const tf_bn_ops::View& v) {
    for (auto& tensor : tensors) tensor.resize(tf_bn_ops::NumElements(v));
    for (auto& vector : vectors) vector.resize(v.channels);
  }
  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<float>& a,
                         const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    for (int i = 0; i < 2; ++i) {
      if (!same(tensors[i], other.tensors[i])) return false;
    }
    for (int i = 0; i < 4; ++i) {
      if (!same(vectors[i], other.vectors[i])) return false;
    }
    return true;
  }
};

// The fields that the arguments of all formulas have, here and in the C ABI.
template <typename Args>
void SetInputs(const Problem& p, Args* args) {
  args->is_training = p.is_training;
  args->epsilon = 1e-3;
  args->x = p.x.data();
  args->scale = p.scale.data();
  args->mean = p.mean.data();
  args->variance = p.variance.data();
}

template <typename Args>
void SetRelu(Args* args) {
  args->activation = static_cast<decltype(args->activation)>(TFBN_RELU);
}

template <typename Args>
void SetForward(const Problem& p, Result* result, Args* args) {
  SetInputs(p, args);
  SetRelu(args);
  args->exponential_avg_factor = 0.5;
  args->offset = p.offset.data();
  args->y = result->tensors[0].data();
  args->batch_mean = result->vectors[0].data();
  args->batch_variance = result->vectors[1].data();
  args->saved_mean = result->vectors[2].data();
  args->saved_variance = result->vectors[3].data();
}

template <typename Args>
void SetFirstOrder(const Problem& p, Result* result, Args* args) {
  SetInputs(p, args);
  args->y_backprop = p.y_backprop.data();
  args->x_backprop = result->tensors[0].data();
  args->scale_backprop = result->vectors[0].data();
  args->offset_backprop = result->vectors[1].data();
}

template <typename Args>
void SetBehindRelu(const Problem& p, Result* result, Args* args) {
  SetFirstOrder(p, result, args);
  SetRelu(args);
  args->y = const_cast<float*>(p.y.data());
  args->offset = p.offset.data();
  args->side_input_backprop = result->tensors[1].data();
}

template <typename Args>
void SetSecondOrder(const Problem& p, Result* result, Args* args) {
  SetInputs(p, args);
  args->y_backprop = p.y_backprop.data();
  args->x_backprop_grad = p.x_backprop_grad.data();
  args->scale_backprop_grad = p.scale_backprop_grad.data();
  args->offset_backprop_grad = p.offset_backprop_grad.data();
  args->y_backprop_grad = result->tensors[0].data();
  args->x_grad = result->tensors[1].data();
  args->scale_grad = result->vectors[0].data();
}

void RunOn(tf_bn_ops::Executor& threads, const tf_bn_ops::Call& args) {
  std::string error;
  const auto& implementation = *tf_bn_ops::SelectedImplementation(&error);
  std::vector<double> workspace(
      tf_bn_ops::CpuWorkspaceBytes(args.formula, args.view, args.dtype) /
          sizeof(double) +
      1);
  tf_bn_ops::RunOnCpu(args, implementation, threads, workspace.data());
}

template <typename Args>
void SetView(const Problem& p, Args* args) {
  args->outer = p.view.outer;
  args->channels = p.view.channels;
  args->inner = p.view.inner;
  args->dtype = args->stat_dtype = TFBN_FLOAT32;
}

template <typename Args>
bool Call(int (*function)(const Args*, const char*, int, char*, size_t),
          const Args& args, int threads) {
  char error[256];
  return function(&args, nullptr, threads, error, sizeof(error)) == 0;
}

bool ComputeElements(const Problem& p, int threads, Result* result) {
  tfbn_batch_norm_backward_elemt_args args{};
  SetView(p, &args);
  SetRelu(&args);
  args.epsilon = 1e-3;
  args.count = 1 + static_cast<double>(tf_bn_ops::ElementsPerChannel(p.view));
  args.y_backprop = p.y_backprop.data();
  args.x = p.x.data();
  args.scale = p.scale.data();
  args.offset = p.offset.data();
  args.mean = p.wide_mean.data();
  args.variance = p.wide_variance.data();
  args.sum_dy = p.sum_dy.data();
  args.sum_dy_xmu = p.sum_dy_xmu.data();
  args.x_backprop = result->tensors[0].data();
  return Call(tfbn_cpu_batch_norm_backward_elemt, args, threads);
}

bool ComputeByCAbi(const Problem& p, int threads, Result* result) {
  if (p.kind == Kind::kElements) return ComputeElements(p, threads, result);
  if (p.kind == Kind::kForward) {
    tfbn_batch_norm_args args{};
    SetView(p, &args);
    SetForward(p, result, &args);
    args.bessel_correction = 1;
    return Call(tfbn_cpu_batch_norm, args, threads);
  }
  if (p.kind == Kind::kBehindRelu) {
    tfbn_batch_norm_grad_ex_args args{};
    SetView(p, &args);
    SetBehindRelu(p, result, &args);
    return Call(tfbn_cpu_batch_norm_grad_ex, args, threads);
  }
  if (p.kind == Kind::kSecondOrder) {
    tfbn_batch_norm_grad_grad_args args{};
    SetView(p, &args);
    SetSecondOrder(p, result, &args);
    return Call(tfbn_cpu_batch_norm_grad_grad, args, threads);
  }
  tfbn_batch_norm_grad_args args{};
  SetView(p, &args);
  SetFirstOrder(p, result, &args);
  return Call(tfbn_cpu_batch_norm_grad, args, threads);
}

bool Compute(const Problem& p, tf_bn_ops::Executor& threads, Result* result) {
  if (p.kind == Kind::kElements) {
    return ComputeByCAbi(p, threads.NumThreads(), result);
  }
  tf_bn_ops::Call args;
  args.view = p.view;
  if (p.kind == Kind::kForward) {
    SetForward(p, result, &args);
  } else if (p.kind == Kind::kSecondOrder) {
    args.formula = tf_bn_ops::FormulaKind::kSecondOrder;
    SetSecondOrder(p, result, &args);
  } else {
    args.formula = tf_bn_ops::FormulaKind::kGradient;
    if (p.kind == Kind::kBehindRelu) {
      SetBehindRelu(p, result, &args);
    } else {
      SetFirstOrder(p, result, &args);
    }
  }
  RunOn(threads, args);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const int callers = argc > 2 ? std::atoi(argv[2]) : 8;
  std::vector<Problem> problems;
  std::vector<Result> expected;
  for (const tf_bn_ops::View& view : kViews) {
    for (const Kind kind : kKinds) {
      for (const bool is_training : {true, false}) {
        problems.emplace_back(view, is_training, kind);
        expected.emplace_back(view);
        tf_bn_ops::InlineExecutor alone;
        if (!Compute(problems.back(), alone, &expected.back())) return 1;
      }
    }
  }
  std::atomic<int64_t> calls{0}, wrong{0};
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  {
    Pool pool(3);
    std::vector<std::thread> threads;
    for (int c = 0; c < callers; ++c) {
      threads.emplace_back([&, c] {
        for (int64_t i = c; std::chrono::steady_clock::now() < end; ++i) {
          const size_t which = i % problems.size();
          Result result(problems[which].view);
          const bool done = i % 7 == 0
                                ? ComputeByCAbi(problems[which], 3, &result)
                                : Compute(problems[which], pool, &result);
          if (!done || !(result == expected[which])) wrong.fetch_add(1);
          calls.fetch_add(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::printf("%lld calls by %d callers, %lld not bitwise identical\n",
              static_cast<long long>(calls.load()), callers,
              static_cast<long long>(wrong.load()));
  return wrong.load() == 0 && calls.load() > 0 ? 0 : 1;
}
