// Several callers at once on one busy pool of threads, and on threads of their
// own: what `make sanitize` runs under ThreadSanitizer.
//
//   stress SECONDS [CALLERS]
//
// Every caller computes a view again and again, through the backend with the
// shared pool and through the C ABI, and compares the bits with those that one
// thread gave in the beginning. Exit status 1 if they ever differ.

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
#include "cc/core/batch_norm_grad.h"
#include "cc/core/parallel.h"
#include "cc/cpu/batch_norm_grad.h"

namespace {

// As TensorFlow's pool: work waits in a queue, and a helper may come to it long
// after its caller has returned.
class Pool final : public tf_bn_ops::Threads {
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
  int Count() const override { return static_cast<int>(threads_.size()) + 1; }
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
  tf_bn_ops::View view;
  bool is_training;
  std::vector<float> y_backprop, x, scale, mean, variance;

  Problem(const tf_bn_ops::View& v, bool training)
      : view(v), is_training(training) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.5f, 1);
    const auto fill = [&](std::vector<float>* array, int64_t size) {
      array->resize(size);
      for (float& value : *array) value = normal(random);
    };
    fill(&y_backprop, tf_bn_ops::NumElements(v));
    fill(&x, tf_bn_ops::NumElements(v));
    fill(&scale, v.channels);
    fill(&mean, v.channels);
    variance.assign(v.channels, 2);
  }
};

struct Result {
  std::vector<float> x_backprop, scale_backprop, offset_backprop;
  explicit Result(const tf_bn_ops::View& v)
      : x_backprop(tf_bn_ops::NumElements(v)),
        scale_backprop(v.channels),
        offset_backprop(v.channels) {}
  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<float>& a,
                         const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(x_backprop, other.x_backprop) &&
           same(scale_backprop, other.scale_backprop) &&
           same(offset_backprop, other.offset_backprop);
  }
};

void Compute(const Problem& p, tf_bn_ops::Threads& threads, Result* result) {
  tf_bn_ops::BatchNormGradArgs args;
  args.view = p.view;
  args.is_training = p.is_training;
  args.epsilon = 1e-3;
  args.y_backprop = p.y_backprop.data();
  args.x = p.x.data();
  args.scale = p.scale.data();
  args.mean = p.mean.data();
  args.variance = p.variance.data();
  args.x_backprop = result->x_backprop.data();
  args.scale_backprop = result->scale_backprop.data();
  args.offset_backprop = result->offset_backprop.data();
  std::string error;
  std::vector<double> workspace(
      tf_bn_ops::CpuBatchNormGradWorkspace(p.view) / sizeof(double) + 1);
  tf_bn_ops::CpuBatchNormGrad(args, *tf_bn_ops::SelectedImplementation(&error),
                              threads, workspace.data());
}

bool ComputeByCAbi(const Problem& p, int threads, Result* result) {
  tfbn_batch_norm_grad_args args{};
  args.outer = p.view.outer;
  args.channels = p.view.channels;
  args.inner = p.view.inner;
  args.dtype = TFBN_FLOAT32;
  args.stat_dtype = TFBN_FLOAT32;
  args.is_training = p.is_training;
  args.epsilon = 1e-3;
  args.y_backprop = p.y_backprop.data();
  args.x = p.x.data();
  args.scale = p.scale.data();
  args.mean = p.mean.data();
  args.variance = p.variance.data();
  args.x_backprop = result->x_backprop.data();
  args.scale_backprop = result->scale_backprop.data();
  args.offset_backprop = result->offset_backprop.data();
  char error[256];
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
    for (bool is_training : {true, false}) {
      problems.emplace_back(view, is_training);
      expected.emplace_back(view);
      tf_bn_ops::NoThreads alone;
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
          if (i % 4 == 0) {
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
  std::printf("%lld calls by %d callers, %lld with other bits\n",
              static_cast<long long>(calls.load()), callers,
              static_cast<long long>(wrong.load()));
  return wrong.load() == 0 && calls.load() > 0 ? 0 : 1;
}
