// The fusion as a graph optimizer of TensorFlow's. Loading the library
// registers it under a name, which a session's RewriterConfig may list; nothing
// runs it until tfbn_enable_graph_fusion registers it for every graph of this
// process.

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "cc/core/records.h"
#include "cc/tf/optimizer/fusion_rules.h"
#include "cc/tf/optimizer/optimizer_c.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/clusters/cluster.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"

namespace tf_bn_ops {
namespace {

namespace grappler = ::tensorflow::grappler;

bool HasOnlyCpus(grappler::Cluster* cluster) {
  if (cluster == nullptr) return false;
  for (const auto& [unused, device] : cluster->GetDevices()) {
    if (device.type() != "CPU") return false;
  }
  return true;
}

class BatchNormFusion : public grappler::CustomGraphOptimizer {
 public:
  // `enabled` is read at each run: a plug-in cannot be unregistered.
  explicit BatchNormFusion(const std::atomic<bool>* enabled)
      : enabled_(enabled) {}

  std::string name() const override { return kName; }
  // For the shapes of what functions return that are not inlined. Without it
  // TensorFlow passes their signatures alone.
  bool UsesFunctionLibrary() const override { return true; }
  absl::Status Init(
      const tensorflow::RewriterConfig_CustomGraphOptimizer*) override {
    return absl::OkStatus();
  }

  // Function bodies that were not inlined are items of their own.
  absl::Status Optimize(grappler::Cluster* cluster,
                        const grappler::GrapplerItem& item,
                        tensorflow::GraphDef* optimized) override try {
    *optimized = item.graph;
    if (enabled_ != nullptr && !*enabled_) return absl::OkStatus();
    FusionOptions options;
    options.preserved = item.NodesToPreserve();
    options.unplaced_is_cpu = HasOnlyCpus(cluster);
    options.leaves_convolutions = false;
    options.same_shape = SameShapeIn(item);
    for (const Fusion& fusion : FusePatterns(options, optimized)) {
      Count("fusion\t" + AsLine(fusion),
            "fusion\t" + AsLine({"(others)", fusion.is_backward,
                                 fusion.refusal.empty() ? "" : "various"}));
    }
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }

  static constexpr char kName[] = "TfBnOpsFusion";

 private:
  const std::atomic<bool>* enabled_;
};

std::atomic<bool> plug_in_enabled{false};

// TensorFlow aborts where a name is registered twice, by a second copy of this
// library.
const bool registered = [] {
  using Registry = grappler::CustomGraphOptimizerRegistry;
  for (const std::string& name : Registry::GetRegisteredOptimizers()) {
    if (name == BatchNormFusion::kName) return false;
  }
  Registry::RegisterOptimizerOrDie([] { return new BatchNormFusion(nullptr); },
                                   BatchNormFusion::kName);
  return true;
}();

}  // namespace
}  // namespace tf_bn_ops

int tfbn_enable_graph_fusion(int enable) try {
  using ::tensorflow::grappler::PluginGraphOptimizerRegistry;
  static std::mutex mutex;
  static bool registered = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (enable != 0 && !registered) {
    // TensorFlow aborts where a second one is registered for a device type.
    if (!PluginGraphOptimizerRegistry::CreateOptimizers({"CPU"}).empty()) {
      return 1;
    }
    // Turns none of TensorFlow's optimizers off.
    tensorflow::grappler::ConfigList configs(/*disable_model_pruning=*/false,
                                             {});
    PluginGraphOptimizerRegistry::RegisterPluginOptimizerOrDie(
        [] {
          return new tf_bn_ops::BatchNormFusion(&tf_bn_ops::plug_in_enabled);
        },
        "CPU", configs);
    registered = true;
  }
  tf_bn_ops::plug_in_enabled = enable != 0;
  return 0;
} catch (const std::exception&) {
  return 2;
}
