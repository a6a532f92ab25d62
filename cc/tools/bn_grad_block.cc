// bn_grad_block: runs one batch-normalization op, forward or gradient, on .npy
// files.
//
//   bn_grad_block --op='TfBnOps>FusedBatchNormGrad'
//       --attributes='epsilon_=0.001;data_format_=NCHW;is_training_=true'
//       --output_dir=out y_backprop=dy.npy x=x.npy scale=scale.npy
//       reserve_space_1=mean.npy reserve_space_2=variance.npy
//
// writes out/x_backprop.npy, out/scale_backprop.npy and so on, one file per
// output. Status 0, or 1 and one sentence on stderr.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/tools/npy.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/command_line_flags.h"
#include "tf_bn_ops/batch_norm_grad_block.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

struct Options {
  std::string op;
  std::string attributes;
  std::string output_dir = ".";
  std::string library;
};

absl::Status Run(const Options& options,
                 const std::vector<std::string>& arguments) {
  if (options.op.empty()) {
    return absl::InvalidArgumentError(
        "no op is given: name one as in --op='TfBnOps>FusedBatchNormGrad'");
  }
  if (!options.library.empty()) {
    TF_RETURN_IF_ERROR(LoadOpLibrary(options.library));
  }
  BatchNormGradBlock block(tf::Scope::NewRootScope(), options.op,
                           options.attributes);
  TF_RETURN_IF_ERROR(block.status());
  std::set<std::string> given;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inputs are given as name=file.npy, but one is \"", argument, "\""));
    }
    const std::string name = argument.substr(0, equals);
    if (!given.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the input ", name, " is given twice"));
    }
    tf::Tensor tensor;
    TF_RETURN_IF_ERROR(ReadNpy(argument.substr(equals + 1), &tensor));
    TF_RETURN_IF_ERROR(block.SetInput(name, tensor));
  }
  TF_RETURN_IF_ERROR(block.Run());
  const absl::Status made =
      tf::Env::Default()->RecursivelyCreateDir(options.output_dir);
  if (!made.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the folder ", options.output_dir,
                     " cannot be made: ", made.message()));
  }
  for (const std::string& name : block.output_names()) {
    TF_RETURN_IF_ERROR(
        WriteNpy(absl::StrCat(options.output_dir, "/", name, ".npy"),
                 block.result(name).back()));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  // Only what goes wrong, unless asked for more.
  if (getenv("TF_CPP_MIN_LOG_LEVEL") == nullptr) {
    setenv("TF_CPP_MIN_LOG_LEVEL", "2", /*overwrite=*/1);
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kError);
  }
  Options options;
  bool help = false;
  std::vector<tf::Flag> flags = {
      tf::Flag("op", &options.op,
               "registered name of the op: TfBnOps>FusedBatchNorm, ...V2, "
               "...V3, ...Ex, TfBnOps>FusedBatchNormGrad, ...V2, ...V3, "
               "TfBnOps>BatchNormTrainingBackprop, or TensorFlow's own "
               "FusedBatchNorm, FusedBatchNormGrad, ...V2, ...V3"),
      tf::Flag("attributes", &options.attributes,
               "as in epsilon_=0.001;data_format_=NCHW;is_training_=true"),
      tf::Flag("output_dir", &options.output_dir,
               "folder of the results, OUTPUT.npy for each output"),
      tf::Flag("library", &options.library,
               "libtf_bn_ops.so or its folder, if it is not beside the client "
               "library"),
      tf::Flag("help", &help, "print this list"),
  };
  const std::string usage = tf::Flags::Usage(
      "bn_grad_block --op=OP [--attributes=A] [--output_dir=D] INPUT=FILE.npy "
      "...",
      flags);
  const auto fail = [](std::string_view message) {
    fprintf(stderr, "error: %s.\n", std::string(message).c_str());
    return 1;
  };
  if (!tf::Flags::Parse(&argc, argv, flags)) {
    return fail("a flag has no value or a wrong one: see bn_grad_block --help");
  }
  if (help) {
    printf("%s", usage.c_str());
    return 0;
  }
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument.rfind("--", 0) == 0) {
      return fail(absl::StrCat("there is no flag ", argument,
                               ": see bn_grad_block --help"));
    }
  }
  const absl::Status status = Run(options, arguments);
  return status.ok() ? 0 : fail(status.message());
}

}  // namespace
}  // namespace tf_bn_ops

int main(int argc, char** argv) { return tf_bn_ops::Main(argc, argv); }
