// What the test programs share: tensors in files, running a graph.

#ifndef TF_BN_OPS_TESTS_CPP_SUPPORT_H_
#define TF_BN_OPS_TESTS_CPP_SUPPORT_H_

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session.h"

inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "error: %s\n", status.ToString().c_str());
  exit(1);
}

inline std::string File(const std::string& folder, const char* name, int i) {
  return folder + "/" + name + std::to_string(i) + ".pb";
}

// Tensors travel as TensorProto, which Python's TensorFlow reads and writes.
inline tensorflow::Tensor ReadTensor(const std::string& path) {
  tensorflow::TensorProto proto;
  tensorflow::Tensor tensor;
  Check(tensorflow::ReadBinaryProto(tensorflow::Env::Default(), path, &proto));
  if (!tensor.FromProto(proto)) exit(2);
  return tensor;
}

inline void WriteTensor(const std::string& path,
                        const tensorflow::Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  Check(tensorflow::WriteBinaryProto(tensorflow::Env::Default(), path, proto));
}

inline bool Exists(const std::string& path) {
  return tensorflow::Env::Default()->FileExists(path).ok();
}

// One case: its folder has inputN.pb and the file `case` with op, epsilon, data
// format ("-" for attributes left out), is_training (0 or 1), and what some ops
// have: exponential_avg_factor, activation_mode, bessel_correction, axis,
// num_side_inputs.
struct Case {
  explicit Case(const std::string& the_folder) : folder(the_folder) {
    std::ifstream(folder + "/case") >> op >> epsilon >> data_format >>
        is_training >> exponential_avg_factor >> activation_mode >>
        bessel_correction >> axis >> num_side_inputs;
    has_attrs = data_format != "-";
    for (int i = 0; Exists(File(folder, "input", i)); ++i) {
      tensors.push_back(ReadTensor(File(folder, "input", i)));
    }
  }
  std::string folder, op, data_format, activation_mode;
  double epsilon = 0;
  float exponential_avg_factor = 1;
  int is_training = 1, bessel_correction = 1, axis = -1, num_side_inputs = 0;
  bool has_attrs = false;
  std::vector<tensorflow::Tensor> tensors;
};

// `optimize`: with Grappler, which replaces TensorFlow's frozen FusedBatchNorm
// of constants by a node of one output, so that no other can be fetched.
inline std::vector<tensorflow::Tensor> RunGraph(
    const tensorflow::Scope& scope,
    const std::vector<tensorflow::Output>& outputs, bool optimize = true) {
  tensorflow::GraphDef graph;
  Check(scope.ToGraphDef(&graph));
  tensorflow::SessionOptions options;
  options.config.mutable_graph_options()
      ->mutable_rewrite_options()
      ->set_disable_meta_optimizer(!optimize);
  const std::unique_ptr<tensorflow::Session> session(
      tensorflow::NewSession(options));
  Check(session->Create(graph));
  std::vector<std::string> names;
  for (const auto& output : outputs) names.push_back(output.name());
  std::vector<tensorflow::Tensor> results;
  Check(session->Run({}, names, {}, &results));
  return results;
}

#endif  // TF_BN_OPS_TESTS_CPP_SUPPORT_H_
