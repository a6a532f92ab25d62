// Several callers at once on one busy pool of threads, and on threads of their
// own: what `make sanitize` runs under ThreadSanitizer.
//
//   stress SECONDS [CALLERS]
//
// Every caller computes every part of every formula, behind a ReLU where it
// knows activations, again and again, through the backend with the shared pool
// and through the C ABI. Exit status 1 unless all results are bitwise identical
// to the results of one thread.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
#include "tests/fuzz/call_arrays.h"

namespace {

using tf_bn_ops::fuzz::Arrays;
using tf_bn_ops::fuzz::Part;

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

struct Problem {
  tf_bn_ops::Call call;
  uint32_t roles;
};

// Every part of every formula on each view and in each mode, with what it may
// have and without, behind a ReLU where it knows activations.
std::vector<Problem> Problems() {
  std::vector<Problem> problems;
  for (const tf_bn_ops::View& view : kViews) {
    for (const Part& part : tf_bn_ops::fuzz::kParts) {
      for (const int choice : {0, 1, 2, 3}) {
        const bool is_training = choice & 1, has_options = choice & 2;
        if (!(is_training ? part.trains : part.freezes)) continue;
        Problem problem{{}, part.roles | (has_options ? part.options : 0)};
        tf_bn_ops::Call& call = problem.call;
        call.formula = part.formula;
        call.view = view;
        call.is_training = is_training;
        call.float64_statistics = part.float64_statistics;
        // Statistics and the second order know none; without y there is the
        // plain gradient alone.
        constexpr uint32_t kY = tf_bn_ops::fuzz::Bits(tf_bn_ops::Role::kY);
        const bool is_gradient =
            part.formula == tf_bn_ops::FormulaKind::kGradient;
        if (is_gradient ? has_options || part.float64_statistics
                        : (part.roles & kY) != 0) {
          call.activation = tf_bn_ops::Activation::kRelu;
        }
        call.epsilon = 1e-3;
        call.exponential_avg_factor = 0.5;
        problems.push_back(problem);
      }
    }
  }
  return problems;
}

// Arrays of numbers around a half; equal problems have equal arrays.
Arrays ArraysOf(const Problem& problem) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 2);
  return Arrays(problem.call, problem.roles,
                [&](uint8_t* bytes, int64_t count, tf_bn_ops::DType dtype) {
                  for (int64_t i = 0; i < count; ++i) {
                    tf_bn_ops::StoreFromDouble(dtype, bytes, i,
                                               uniform(random));
                  }
                });
}

bool ComputeByCAbi(const tf_bn_ops::Call& call, int threads) {
  char error[256];
  if (tfbn_cpu_run(&call, nullptr, threads, error, sizeof(error)) == 0) {
    return true;
  }
  std::fprintf(stderr, "refused: %s\n", error);
  return false;
}

void Compute(const tf_bn_ops::Call& call, tf_bn_ops::Executor& threads) {
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
  const std::vector<Problem> problems = Problems();
  std::vector<Arrays> results;
  std::vector<tf_bn_ops::Call> expected;
  for (const Problem& problem : problems) {
    results.push_back(ArraysOf(problem));
    expected.push_back(results.back().Of(problem.call));
    if (!ComputeByCAbi(expected.back(), 1)) std::abort();
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
          Arrays arrays = ArraysOf(problems[which]);
          const tf_bn_ops::Call call = arrays.Of(problems[which].call);
          const bool by_c_abi = i % 7 == 0;
          const bool done = !by_c_abi || ComputeByCAbi(call, 3);
          if (!by_c_abi) Compute(call, pool);
          if (!done || !Arrays::AreEqual(call, expected[which])) {
            wrong.fetch_add(1);
          }
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
