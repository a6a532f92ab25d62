// The C functions by which Python fuses a serialized GraphDef.

#include "cc/optimizer/optimizer_c.h"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "cc/optimizer/fuse_library.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace {

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
                    void** result, size_t* result_size, char** report) {
  *result = nullptr;
  tensorflow::GraphDef graph_def;
  if (!graph_def.ParseFromArray(graph, static_cast<int>(graph_size))) {
    *report = Copy("the GraphDef cannot be parsed");
    return 1;
  }
  std::vector<tf_bn_ops::LibraryFusion> fusions;
  const absl::Status status =
      tf_bn_ops::FuseGraphAndLibrary(Lines(preserved), &graph_def, &fusions);
  if (!status.ok()) {
    *report = Copy(std::string(status.message()));
    return 1;
  }
  const std::string serialized = graph_def.SerializeAsString();
  *result = Copy(serialized);
  if (*result == nullptr) {
    *report = Copy("there is no memory for the fused GraphDef");
    return 1;
  }
  *result_size = serialized.size();
  *report = Copy(Report(fusions));
  return 0;
}

void tfbn_free(void* buffer) { std::free(buffer); }
