// The C ABI of the CPU backend: checks, then calls cc/cpu.

#include "cc/c_api/tf_bn_ops_c.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/c_api/read_call.h"
#include "cc/core/gather_stats.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/cpu/formula_entry.h"
#include "cc/cpu/plan.h"
#include "cc/cpu/verbose.h"

namespace {

using tf_bn_ops::CpuWorkspaceBytes;
using tf_bn_ops::Implementation;
using tf_bn_ops::PlanRequest;
using tf_bn_ops::RunOnCpu;
using tf_bn_ops::View;
using tf_bn_ops::c_api::CheckView;
using tf_bn_ops::c_api::Report;

// Starts a thread for each piece of work: callers of the C ABI have no pool.
class SpawningExecutor final : public tf_bn_ops::Executor {
 public:
  explicit SpawningExecutor(int count) : count_(count) {}
  ~SpawningExecutor() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int NumThreads() const override { return count_; }
  void Schedule(std::function<void()> work) override {
    threads_.emplace_back(std::move(work));
  }

 private:
  const int count_;
  std::vector<std::thread> threads_;
};

// The implementation called `name`, the selected one for NULL; nullptr, with
// one sentence in `error`, if it cannot be used.
const Implementation* ImplementationOf(const char* name, std::string* error) {
  return name == nullptr ? tf_bn_ops::SelectedImplementation(error)
                         : tf_bn_ops::FindImplementation(name, error);
}

// A plan lists its tasks, whose number grows with the number of threads.
constexpr int kMaxExplainedThreads = 1 << 16;
// The caches of all threads together must not overflow.
constexpr int64_t kMaxExplainedCacheBytes = int64_t{1} << 40;

// Translates the arguments of tfbn_explain. One sentence, or empty.
std::string ReadRequest(const char* formula, const tfbn_explain_args* args,
                        const Implementation& implementation,
                        PlanRequest* request) {
  if (formula == nullptr || args == nullptr) {
    return "formula and args must not be NULL";
  }
  const int found = tf_bn_ops::FindFormula(formula);
  if (found == tf_bn_ops::kNumFormulas) {
    return std::string("there is no formula \"") + formula + "\"";
  }
  const auto index = static_cast<tf_bn_ops::FormulaIndex>(found);
  request->formula = tf_bn_ops::EntryOf(index).traits;
  request->dtype = static_cast<tf_bn_ops::DType>(args->dtype);
  const std::string error =
      tf_bn_ops::c_api::CheckDType(request->dtype, "dtype");
  if (!error.empty()) return error;
  request->kernels = &implementation.KernelsOf(index, request->dtype);
  if (args->threads < 1 || args->threads > kMaxExplainedThreads) {
    return "threads must be at least 1 and at most " +
           std::to_string(kMaxExplainedThreads);
  }
  if (std::min(args->l2_bytes, args->llc_bytes) < 0 ||
      std::max(args->l2_bytes, args->llc_bytes) > kMaxExplainedCacheBytes) {
    return "l2_bytes and llc_bytes must be at least 0 and at most " +
           std::to_string(kMaxExplainedCacheBytes);
  }
  request->view = View{args->outer, args->channels, args->inner};
  request->is_training = args->is_training != 0;
  request->in_place = args->in_place != 0;
  if (request->in_place) {
    request->early_buffer = tf_bn_ops::EarlyBuffer::kInPlace;
    request->second_in_place = true;
  }
  const auto activation = static_cast<tf_bn_ops::Activation>(args->activation);
  if (request->formula.is_smooth &&
      (!tf_bn_ops::IsSmooth(activation) ||
       args->activation >= tf_bn_ops::kNumActivations)) {
    return "activation must be that of a formula of smooth ones: TFBN_SILU, "
           "...";
  }
  request->costly_slope = tf_bn_ops::SlopeIsCostly(activation);
  request->threads = args->threads;
  request->caches = tf_bn_ops::MachineCacheSizes();
  if (args->l2_bytes > 0) request->caches.l2_bytes = args->l2_bytes;
  if (args->llc_bytes > 0) request->caches.llc_bytes = args->llc_bytes;
  return CheckView(request->view);
}

}  // namespace

int tfbn_cpu_run(const tfbn_call* c_call, const char* implementation,
                 int threads, char* error, size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    std::string sentence = tf_bn_ops::c_api::CheckCall(c_call);
    if (!sentence.empty()) return sentence;
    if (threads < 1) return "threads must be at least 1";
    const Implementation* const chosen =
        ImplementationOf(implementation, &sentence);
    if (chosen == nullptr) return sentence;
    const tf_bn_ops::Call call(*c_call);
    // Not cleared, like the workspace of TensorFlow's kernels: whoever judges
    // the core by this call has to see what is read before it is written.
    const std::unique_ptr<char[]> workspace(
        new char[CpuWorkspaceBytes(call.formula, call.view, call.dtype)]);
    SpawningExecutor executor(threads);
    RunOnCpu(call, *chosen, executor, workspace.get());
    return "";
  });
}

int tfbn_cpu_gather_stats(const tfbn_gather_stats* args, char* error,
                          size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    const std::string sentence = tf_bn_ops::c_api::CheckGatherStats(args);
    if (!sentence.empty()) return sentence;
    if (tf_bn_ops::FindInvalidCount(*args) >= 0) {
      return "counts must be finite and not negative";
    }
    tf_bn_ops::GatherStats(*args);
    return "";
  });
}

int tfbn_explain(const char* formula, const tfbn_explain_args* args,
                 const char* implementation, char* json, size_t json_size,
                 char* error, size_t error_size) {
  return Report(error, error_size, [&]() -> std::string {
    PlanRequest request;
    std::string sentence;
    const Implementation* const chosen =
        ImplementationOf(implementation, &sentence);
    if (chosen == nullptr) return sentence;
    sentence = ReadRequest(formula, args, *chosen, &request);
    if (!sentence.empty()) return sentence;
    if (json == nullptr) return "json must not be NULL";
    const std::string text = tf_bn_ops::PlanAsJson(
        request, tf_bn_ops::MakePlan(request), chosen->name);
    if (text.size() >= json_size) {
      return "json_size must be at least " + std::to_string(text.size() + 1);
    }
    std::memcpy(json, text.c_str(), text.size() + 1);
    return "";
  });
}

const char* tfbn_cpu_implementation(int i, int* supported) {
  const auto all = tf_bn_ops::Implementations();
  if (i < 0 || i >= all.end() - all.begin()) return nullptr;
  const Implementation& implementation = all.begin()[i];
  if (supported != nullptr) *supported = implementation.supported() ? 1 : 0;
  return implementation.name;
}
