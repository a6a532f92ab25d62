// Reads and writes .npy files (NumPy's own format, one array per file,
// npy_format.h) as tensors.

#ifndef TF_BN_OPS_CC_TOOLS_NPY_H_
#define TF_BN_OPS_CC_TOOLS_NPY_H_

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/tools/npy_format.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"

namespace tf_bn_ops {

namespace npy {

inline tensorflow::DataType DataTypeOf(Type type) {
  switch (type) {
    case kHalf:
      return tensorflow::DT_HALF;
    case kFloat:
      return tensorflow::DT_FLOAT;
    case kDouble:
      return tensorflow::DT_DOUBLE;
    case kBfloat16:
      return tensorflow::DT_BFLOAT16;
  }
  return tensorflow::DT_INVALID;
}

}  // namespace npy

// Reads the file `path`. On error the message names it and says what to do.
inline absl::Status ReadNpy(const std::string& path,
                            tensorflow::Tensor* tensor) {
  std::string file;
  const absl::Status read =
      tensorflow::ReadFileToString(tensorflow::Env::Default(), path, &file);
  if (!read.ok()) {
    return absl::NotFoundError(
        absl::StrCat(path, " cannot be read: ", read.message()));
  }
  npy::Array array;
  std::string wrong = npy::Parse(file, &array);
  tensorflow::TensorShape shape;
  // Sizes whose product overflows beside a 0.
  if (wrong.empty() &&
      !tensorflow::TensorShape::BuildTensorShape(array.shape, &shape).ok()) {
    wrong = npy::kTooLarge;
  }
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ", wrong));
  }
  *tensor = tensorflow::Tensor(npy::DataTypeOf(array.type), shape);
  if (!tensor->IsInitialized()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " does not fit into memory"));
  }
  if (array.bytes > 0) {
    memcpy(tensor->data(), file.data() + array.data, array.bytes);
  }
  return absl::OkStatus();
}

// Writes `tensor` (half, bfloat16, float or double) to the file `path`, which
// is replaced if it exists.
inline absl::Status WriteNpy(const std::string& path,
                             const tensorflow::Tensor& tensor) {
  const char* descr = nullptr;
  for (const npy::Descr& known : npy::kDescrs) {
    if (descr == nullptr && tensor.dtype() == npy::DataTypeOf(known.type)) {
      descr = known.text;
    }
  }
  if (descr == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not written: .npy holds no ",
                     tensorflow::DataTypeString(tensor.dtype())));
  }
  std::string shape;
  for (int i = 0; i < tensor.dims(); ++i) {
    absl::StrAppend(&shape, tensor.dim_size(i), ",");
  }
  std::string text =
      absl::StrCat("{'descr': '", descr,
                   "', 'fortran_order': False, 'shape': (", shape, "), }");
  // Blanks and a newline, so that the data begins at a multiple of 64.
  const size_t before = npy::kMagicSize + 4;
  text.append(63 - (before + text.size()) % 64, ' ');
  text.push_back('\n');
  std::string file = npy::kMagic;
  file += {1, 0, static_cast<char>(text.size() & 0xff),
           static_cast<char>(text.size() >> 8)};
  file += text;
  if (tensor.NumElements() > 0) {
    file.append(static_cast<const char*>(tensor.data()), tensor.TotalBytes());
  }
  const absl::Status written =
      tensorflow::WriteStringToFile(tensorflow::Env::Default(), path, file);
  if (!written.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " cannot be written: ", written.message()));
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_TOOLS_NPY_H_
