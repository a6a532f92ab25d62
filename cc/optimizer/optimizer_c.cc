// The C functions by which Python fuses a serialized GraphDef.

#include "cc/optimizer/optimizer_c.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "cc/optimizer/fuse_library.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace {

constexpr size_t kMaxBytes = std::numeric_limits<int32_t>::max();

char* Copy(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

std::unordered_set<std::string> Lines(const char* text) {
  std::unordered_set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

std::string Report(const std::vector<tf_bn_ops::LibraryFusion>& fusions) {
  std::string report;
  for (const auto& [function, fusion] : fusions) {
    report += function + "\t" + fusion.node + "\t" +
              (fusion.is_backward ? "backward" : "forward") + "\t" +
              fusion.refusal + "\n";
  }
  return report;
}

}  // namespace

int tfbn_fuse_graph(const void* graph, size_t graph_size, const char* preserved,
                    void** result, size_t* result_size, char** report) try {
  *result = nullptr;
  *result_size = 0;
  *report = nullptr;
  const auto failed = [report](const std::string& error) {
    *report = Copy(error);
    return 1;
  };
  if (graph_size > kMaxBytes) {
    return failed("it is larger than 2 GiB, the most that protobuf reads");
  }
  tensorflow::GraphDef graph_def;
  if (!graph_def.ParseFromArray(graph, static_cast<int>(graph_size))) {
    return failed("the GraphDef cannot be parsed");
  }
  std::vector<tf_bn_ops::LibraryFusion> fusions;
  const absl::Status status =
      tf_bn_ops::FuseGraphAndLibrary(Lines(preserved), &graph_def, &fusions);
  if (!status.ok()) return failed(std::string(status.message()));
  std::string serialized;
  if (graph_def.ByteSizeLong() > kMaxBytes ||
      !graph_def.SerializeToString(&serialized)) {
    return failed(
        "fused, it is larger than 2 GiB, the most that protobuf writes");
  }
  *result = Copy(serialized);
  *result_size = serialized.size();
  *report = Copy(Report(fusions));
  return *report != nullptr && *result != nullptr ? 0 : 1;
} catch (const std::bad_alloc&) {
  return 1;  // without a report
} catch (const std::exception& error) {
  *report = Copy(error.what());
  return 1;
}

void tfbn_free(void* buffer) { std::free(buffer); }
