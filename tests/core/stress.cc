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
#include "cc/core/call.h"
#include "cc/core/executor.h"
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

// What is computed; kElements is the second pass of a synchronised gradient.
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
  double count;

  Problem(const tf_bn_ops::View& v, bool training, Kind what)
      : view(v),
        is_training(training),
        kind(what),
        count(1 + static_cast<double>(tf_bn_ops::ElementsPerChannel(v))) {
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

// The call of a problem.
tf_bn_ops::Call CallOf(const Problem& p, Result* result) {
  tf_bn_ops::Call call;
  call.formula = p.kind == Kind::kForward ? tf_bn_ops::FormulaKind::kForward
                 : p.kind == Kind::kSecondOrder
                     ? tf_bn_ops::FormulaKind::kSecondOrder
                     : tf_bn_ops::FormulaKind::kGradient;
  call.view = p.view;
  call.is_training = p.is_training;
  call.epsilon = 1e-3;
  call.exponential_avg_factor = 0.5;
  call.x = p.x.data();
  call.y_backprop = p.y_backprop.data();
  call.scale = p.scale.data();
  call.offset = p.offset.data();
  call.mean = p.mean.data();
  call.variance = p.variance.data();
  void* const tensors[] = {result->tensors[0].data(),
                           result->tensors[1].data()};
  auto& vectors = result->vectors;
  switch (p.kind) {
    case Kind::kForward:
      call.activation = tf_bn_ops::Activation::kRelu;
      call.y = tensors[0];
      call.batch_mean = vectors[0].data();
      call.batch_variance = vectors[1].data();
      call.saved_mean = vectors[2].data();
      call.saved_variance = vectors[3].data();
      break;
    case Kind::kSecondOrder:
      call.x_backprop_grad = p.x_backprop_grad.data();
      call.scale_backprop_grad = p.scale_backprop_grad.data();
      call.offset_backprop_grad = p.offset_backprop_grad.data();
      call.y_backprop_grad = tensors[0];
      call.x_grad = tensors[1];
      call.scale_grad = vectors[0].data();
      break;
    case Kind::kElements:
      call.is_training = 0;
      call.float64_statistics = 1;
      call.activation = tf_bn_ops::Activation::kRelu;
      call.mean = p.wide_mean.data();
      call.variance = p.wide_variance.data();
      call.sum_dy = p.sum_dy.data();
      call.sum_dy_xmu = p.sum_dy_xmu.data();
      call.count = &p.count;
      call.x_backprop = tensors[0];
      break;
    case Kind::kBehindRelu:
      call.activation = tf_bn_ops::Activation::kRelu;
      call.y = const_cast<float*>(p.y.data());
      call.side_input_backprop = tensors[1];
      [[fallthrough]];
    case Kind::kGradient:
      call.x_backprop = tensors[0];
      call.scale_backprop = vectors[0].data();
      call.offset_backprop = vectors[1].data();
  }
  return call;
}

bool ComputeByCAbi(const Problem& p, int threads, Result* result) {
  char error[256];
  const tf_bn_ops::Call call = CallOf(p, result);
  return tfbn_cpu_run(&call, nullptr, threads, error, sizeof(error)) == 0;
}

void Compute(const Problem& p, tf_bn_ops::Executor& threads, Result* result) {
  const tf_bn_ops::Call call = CallOf(p, result);
  std::string error;
  const auto& implementation = *tf_bn_ops::SelectedImplementation(&error);
  std::vector<double> workspace(
      tf_bn_ops::CpuWorkspaceBytes(call.formula, call.view, call.dtype) /
          sizeof(double) +
      1);
  tf_bn_ops::RunOnCpu(call, implementation, threads, workspace.data());
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
        Compute(problems.back(), alone, &expected.back());
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
          const bool by_c_abi = i % 7 == 0;
          const bool done =
              !by_c_abi || ComputeByCAbi(problems[which], 3, &result);
          if (!by_c_abi) Compute(problems[which], pool, &result);
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
