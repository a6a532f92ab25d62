// Reads and writes .npy files (NumPy's own format, one array per file) as
// tensors:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
//
// Versions 1 to 3; little-endian float16, float32 and float64 in C order, and
// bfloat16, which NumPy stores as two opaque bytes ("V2"). Everything else is
// refused in one sentence, as are files that are shorter or longer than their
// header says.

#ifndef TF_BN_OPS_CC_TOOLS_NPY_H_
#define TF_BN_OPS_CC_TOOLS_NPY_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"

namespace tf_bn_ops {

namespace npy_internal {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = sizeof(kMagic) - 1;

struct Type {
  const char* descr;
  tensorflow::DataType dtype;
};
// The first of each dtype is what is written.
constexpr Type kTypes[] = {
    {"<f2", tensorflow::DT_HALF},     {"<f4", tensorflow::DT_FLOAT},
    {"<f8", tensorflow::DT_DOUBLE},   {"<V2", tensorflow::DT_BFLOAT16},
    {"|V2", tensorflow::DT_BFLOAT16},
};

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// A reader of the header, which is the text of a Python dict of three entries
// as NumPy writes it: {'descr': '<f4', 'fortran_order': False, 'shape': (2,), }
class HeaderParser {
 public:
  explicit HeaderParser(const std::string& text)
      : next_(text.data()), end_(text.data() + text.size()) {}

  // False if the text is not such a dict.
  bool Parse(Header* header) {
    bool descr = false, order = false, shape = false;
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string key;
      if (!String(&key) || !Take(':')) return false;
      if (key == "descr" && !descr) {
        descr = String(&header->descr);
        if (!descr) return false;
      } else if (key == "fortran_order" && !order) {
        header->fortran_order = Word("True");
        order = header->fortran_order || Word("False");
        if (!order) return false;
      } else if (key == "shape" && !shape) {
        shape = Shape(&header->shape);
        if (!shape) return false;
      } else {
        return false;
      }
      if (!Take(',') && !Peek('}')) return false;
    }
    SkipBlanks();
    return descr && order && shape && next_ == end_;
  }

 private:
  void SkipBlanks() {
    while (next_ != end_ && (*next_ == ' ' || *next_ == '\n')) ++next_;
  }
  bool Peek(char c) {
    SkipBlanks();
    return next_ != end_ && *next_ == c;
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    ++next_;
    return true;
  }
  bool Word(const char* word) {
    SkipBlanks();
    const size_t size = strlen(word);
    if (static_cast<size_t>(end_ - next_) < size ||
        memcmp(next_, word, size) != 0) {
      return false;
    }
    next_ += size;
    return true;
  }
  bool String(std::string* text) {
    SkipBlanks();
    if (next_ == end_ || (*next_ != '\'' && *next_ != '"')) return false;
    const char quote = *next_++;
    text->clear();
    while (next_ != end_ && *next_ != quote) text->push_back(*next_++);
    return Take(quote);
  }
  bool Shape(std::vector<int64_t>* shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipBlanks();
      int64_t size = 0;
      const char* const first = next_;
      for (; next_ != end_ && *next_ >= '0' && *next_ <= '9'; ++next_) {
        if (size > std::numeric_limits<int64_t>::max() / 10 - 1) return false;
        size = 10 * size + (*next_ - '0');
      }
      if (next_ == first) return false;
      shape->push_back(size);
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  const char* next_;
  const char* const end_;
};

}  // namespace npy_internal

// Reads the file `path`. On error the message names it and says what to do.
inline absl::Status ReadNpy(const std::string& path,
                            tensorflow::Tensor* tensor) {
  using namespace npy_internal;  // NOLINT: this header's own
  const auto error = [&path](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ", parts...));
  };
  std::string file;
  const absl::Status read =
      tensorflow::ReadFileToString(tensorflow::Env::Default(), path, &file);
  if (!read.ok()) {
    return absl::NotFoundError(
        absl::StrCat(path, " cannot be read: ", read.message()));
  }
  if (file.compare(0, kMagicSize, kMagic) != 0) {
    return error("is no .npy file: write it with numpy.save()");
  }
  const auto byte = [&file](size_t i) {
    return static_cast<size_t>(static_cast<unsigned char>(file[i]));
  };
  // Magic, version (major, minor), length of the header: 2 bytes in version 1,
  // 4 in later ones.
  const char* const kTruncated = "is truncated: copy or write it again";
  if (file.size() < kMagicSize + 2) return error(kTruncated);
  const size_t version = byte(kMagicSize);
  if (version < 1 || version > 3) {
    return error("has version ", version,
                 " of the .npy format, of which versions 1 to 3 are known");
  }
  const size_t length_size = version == 1 ? 2 : 4;
  size_t begin = kMagicSize + 2 + length_size;
  if (file.size() < begin) return error(kTruncated);
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) {
    length |= byte(kMagicSize + 2 + i) << (8 * i);
  }
  if (file.size() - begin < length) return error(kTruncated);
  const std::string text = file.substr(begin, length);
  begin += length;

  Header header;
  if (!HeaderParser(text).Parse(&header)) {
    return error(
        "has a header that describes no plain array: write it with "
        "numpy.save() from an array of float16, float32 or float64");
  }
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  for (const Type& type : kTypes) {
    if (header.descr == type.descr) dtype = type.dtype;
  }
  if (dtype == tensorflow::DT_INVALID) {
    if (header.descr[0] == '>') {
      return error("is big-endian (", header.descr,
                   "): convert it with array.astype(array.dtype."
                   "newbyteorder('<'))");
    }
    return error("holds elements of type ", header.descr,
                 ": convert it to float16, float32 or float64 (or bfloat16)");
  }
  // One dimension at most is the same in both orders.
  if (header.fortran_order && header.shape.size() > 1) {
    return error(
        "is in Fortran order: convert it with numpy.ascontiguousarray()");
  }
  tensorflow::TensorShape shape;
  if (!tensorflow::TensorShape::BuildTensorShape(header.shape, &shape).ok()) {
    return error("has a shape that is too large for a tensor");
  }
  const size_t element_size = tensorflow::DataTypeSize(dtype);
  const size_t available = (file.size() - begin) / element_size;
  const size_t elements = shape.num_elements();
  if (available < elements) return error(kTruncated);
  const size_t bytes = elements * element_size;
  if (file.size() - begin != bytes) {
    return error("is longer than its header says: copy or write it again");
  }
  *tensor = tensorflow::Tensor(dtype, shape);
  if (bytes > 0) memcpy(tensor->data(), file.data() + begin, bytes);
  return absl::OkStatus();
}

// Writes `tensor` (half, bfloat16, float or double) to the file `path`, which
// is replaced if it exists.
inline absl::Status WriteNpy(const std::string& path,
                             const tensorflow::Tensor& tensor) {
  using namespace npy_internal;  // NOLINT: this header's own
  const char* descr = nullptr;
  for (const Type& type : kTypes) {
    if (descr == nullptr && tensor.dtype() == type.dtype) descr = type.descr;
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
  const size_t before = kMagicSize + 4;
  text.append(63 - (before + text.size()) % 64, ' ');
  text.push_back('\n');
  std::string file = kMagic;
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
