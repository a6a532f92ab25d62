// Runs a block: block FOLDER OP ATTRIBUTES PIN... reads FOLDER/PIN.pb, a
// TensorProto, for each pin, and writes FOLDER/out/NAME.pb for each output.

#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tf_bn_ops/batch_norm_grad_block.h"

namespace tf = ::tensorflow;

absl::Status Run(int argc, char** argv) {
  const std::string folder = argv[1];
  tf_bn_ops::BatchNormGradBlock block(tf::Scope::NewRootScope(), argv[2],
                                      argv[3]);
  TF_RETURN_IF_ERROR(block.status());
  for (int i = 4; i < argc; ++i) {
    tf::TensorProto proto;
    tf::Tensor tensor;
    TF_RETURN_IF_ERROR(tf::ReadBinaryProto(
        tf::Env::Default(), folder + "/" + argv[i] + ".pb", &proto));
    if (!tensor.FromProto(proto)) return absl::InternalError(argv[i]);
    TF_RETURN_IF_ERROR(block.SetInput(argv[i], tensor));
  }
  TF_RETURN_IF_ERROR(block.Run());
  mkdir((folder + "/out").c_str(), 0755);
  for (const std::string& name : block.output_names()) {
    tf::TensorProto proto;
    block.result(name).back().AsProtoTensorContent(&proto);
    TF_RETURN_IF_ERROR(tf::WriteBinaryProto(
        tf::Env::Default(), folder + "/out/" + name + ".pb", proto));
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const absl::Status status = Run(argc, argv);
  if (status.ok()) return 0;
  fprintf(stderr, "error: %s.\n", std::string(status.message()).c_str());
  return 1;
}
