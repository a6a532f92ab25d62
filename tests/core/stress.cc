// Several callers at once on one busy pool of threads, and on threads of their
// own: what `make sanitize` runs under ThreadSanitizer.
//
//   stress SECONDS [CALLERS]
//
// Every caller computes first-order and second-order gradients again and again,
// through the backend with the shared pool and through the C ABI. Exit status 1
// unless all results are bitwise identical to those of one thread.

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
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
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

// A first-order or second-order gradient of one view.
struct Problem {
  tf_bn_ops::View view;
  bool is_training, second_order;
  // Inputs of view shape, then of shape [channels]; those of the second-order
  // gradient alone come last.
  std::vector<float> y_backprop, x, x_backprop_grad;
  std::vector<float> scale, mean, variance, scale_backprop_grad,
      offset_backprop_grad;

  Problem(const tf_bn_ops::View& v, bool training, bool second)
      : view(v), is_training(training), second_order(second) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.5f, 1);
    for (auto* array : {&y_backprop, &x, &x_backprop_grad}) {
      array->resize(tf_bn_ops::NumElements(v));
      for (float& value : *array) value = normal(random);
    }
    for (auto* array :
         {&scale, &mean, &scale_backprop_grad, &offset_backprop_grad}) {
      array->resize(v.channels);
      for (float& value : *array) value = normal(random);
    }
    variance.assign(v.channels, 2);
  }
};

// Outputs of view shape and of shape [channels]: the first-order gradient has
// one and two of them, the second-order one two and one.
struct Result {
  std::vector<float> tensors[2], vectors[2];

  explicit Result(const tf_bn_ops::View& v) {
    for (auto& tensor : tensors) tensor.resize(tf_bn_ops::NumElements(v));
    for (auto& vector : vectors) vector.resize(v.channels);
  }
  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<float>& a,
                         const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(tensors[0], other.tensors[0]) &&
           same(tensors[1], other.tensors[1]) &&
           same(vectors[0], other.vectors[0]) &&
           same(vectors[1], other.vectors[1]);
  }
};

// The fields that the arguments of both gradients have, here and in the C ABI.
template <typename Args>
void SetInputs(const Problem& p, Args* args) {
  args->is_training = p.is_training;
  args->epsilon = 1e-3;
  args->y_backprop = p.y_backprop.data();
  args->x = p.x.data();
  args->scale = p.scale.data();
  args->mean = p.mean.data();
  args->variance = p.variance.data();
}

template <typename Args>
void SetFirstOrder(const Problem& p, Result* result, Args* args) {
  SetInputs(p, args);
  args->x_backprop = result->tensors[0].data();
  args->scale_backprop = result->vectors[0].data();
  args->offset_backprop = result->vectors[1].data();
}

template <typename Args>
void SetSecondOrder(const Problem& p, Result* result, Args* args) {
  SetInputs(p, args);
  args->x_backprop_grad = p.x_backprop_grad.data();
  args->scale_backprop_grad = p.scale_backprop_grad.data();
  args->offset_backprop_grad = p.offset_backprop_grad.data();
  args->y_backprop_grad = result->tensors[0].data();
  args->x_grad = result->tensors[1].data();
  args->scale_grad = result->vectors[0].data();
}

void Compute(const Problem& p, tf_bn_ops::Executor& threads, Result* result) {
  std::string error;
  const auto& implementation = *tf_bn_ops::SelectedImplementation(&error);
  const auto workspace = [](size_t bytes) {
    return std::vector<double>(bytes / sizeof(double) + 1);
  };
  if (p.second_order) {
    tf_bn_ops::BatchNormGradGradArgs args;
    args.view = p.view;
    SetSecondOrder(p, result, &args);
    using F = tf_bn_ops::BatchNormGradGradFormula;
    tf_bn_ops::RunOnCpu<F>(
        args, implementation, threads,
        workspace(tf_bn_ops::CpuWorkspaceBytes<F>(p.view)).data());
  } else {
    tf_bn_ops::BatchNormGradArgs args;
    args.view = p.view;
    SetFirstOrder(p, result, &args);
    using F = tf_bn_ops::BatchNormGradFormula;
    tf_bn_ops::RunOnCpu<F>(
        args, implementation, threads,
        workspace(tf_bn_ops::CpuWorkspaceBytes<F>(p.view)).data());
  }
}

template <typename Args>
void SetView(const Problem& p, Args* args) {
  args->outer = p.view.outer;
  args->channels = p.view.channels;
  args->inner = p.view.inner;
  args->dtype = args->stat_dtype = TFBN_FLOAT32;
}

bool ComputeByCAbi(const Problem& p, int threads, Result* result) {
  char error[256];
  if (p.second_order) {
    tfbn_batch_norm_grad_grad_args args{};
    SetView(p, &args);
    SetSecondOrder(p, result, &args);
    return tfbn_cpu_batch_norm_grad_grad(&args, nullptr, threads, error,
                                         sizeof(error)) == 0;
  }
  tfbn_batch_norm_grad_args args{};
  SetView(p, &args);
  SetFirstOrder(p, result, &args);
  return tfbn_cpu_batch_norm_grad(&args, nullptr, threads, error,
                                  sizeof(error)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const int callers = argc > 2 ? std::atoi(argv[2]) : 8;
  std::vector<Problem> problems;
  std::vector<Result> expected;
  for (const tf_bn_ops::View& view : kViews) {
    for (int kind = 0; kind < 4; ++kind) {
      problems.emplace_back(view, kind % 2 == 0, kind / 2 == 1);
      expected.emplace_back(view);
      tf_bn_ops::InlineExecutor alone;
      Compute(problems.back(), alone, &expected.back());
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
          bool done = true;
          if (i % 5 == 0) {
            done = ComputeByCAbi(problems[which], 3, &result);
          } else {
            Compute(problems[which], pool, &result);
          }
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
