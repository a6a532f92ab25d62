// The .npy format without TensorFlow, so that it can be fuzzed by itself
// (cc/fuzz):
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
//
// Versions 1 to 3; little-endian float16, float32 and float64 in C order, and
// bfloat16, which NumPy stores as two opaque bytes ("V2"). Everything else is
// refused in one sentence, as are files that are shorter or longer than their
// header says.

#ifndef TF_BN_OPS_CC_TOOLS_NPY_FORMAT_H_
#define TF_BN_OPS_CC_TOOLS_NPY_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace tf_bn_ops {
namespace npy {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = sizeof(kMagic) - 1;

// One row per spelling of an element type; the first of each is written.
enum Type { kHalf, kFloat, kDouble, kBfloat16 };
struct Descr {
  const char* text;
  Type type;
  size_t bytes;
};
constexpr Descr kDescrs[] = {
    {"<f2", kHalf, 2},     {"<f4", kFloat, 4},    {"<f8", kDouble, 8},
    {"<V2", kBfloat16, 2}, {"|V2", kBfloat16, 2},
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

// What a file holds: its elements begin at `data`.
struct Array {
  Type type = kFloat;
  std::vector<int64_t> shape;
  size_t data = 0;
  size_t bytes = 0;
};

// NumPy's own limit (version 2; 32 before); TensorFlow's is higher.
constexpr size_t kMaxDimensions = 64;
constexpr char kTooLarge[] = "has a shape that is too large for a tensor";

constexpr char kTruncated[] = "is truncated: copy or write it again";

// Finds the text of the header: the dictionary that ends at `data`, where the
// elements begin. Like the functions below, returns what is wrong with the
// file, to follow its name, or empty.
inline std::string FindHeader(const std::string& file, std::string* text,
                              size_t* data) {
  if (file.compare(0, kMagicSize, kMagic) != 0) {
    return "is no .npy file: write it with numpy.save()";
  }
  const auto byte = [&file](size_t i) {
    return static_cast<size_t>(static_cast<unsigned char>(file[i]));
  };
  // Magic, version (major, minor), length of the header: 2 bytes in version 1,
  // 4 in later ones.
  if (file.size() < kMagicSize + 2) return kTruncated;
  const size_t version = byte(kMagicSize);
  if (version < 1 || version > 3) {
    return "has version " + std::to_string(version) +
           " of the .npy format, of which versions 1 to 3 are known";
  }
  const size_t length_size = version == 1 ? 2 : 4;
  const size_t begin = kMagicSize + 2 + length_size;
  if (file.size() < begin) return kTruncated;
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) {
    length |= byte(kMagicSize + 2 + i) << (8 * i);
  }
  if (file.size() - begin < length) return kTruncated;
  *text = file.substr(begin, length);
  *data = begin + length;
  return "";
}

// Finds the element type of a descr.
inline std::string FindDescr(const std::string& text, const Descr** descr) {
  for (const Descr& known : kDescrs) {
    if (text == known.text) {
      *descr = &known;
      return "";
    }
  }
  if (text[0] == '>') {
    return "is big-endian (" + text +
           "): convert it with array.astype(array.dtype.newbyteorder('<'))";
  }
  return "holds elements of type " + text +
         ": convert it to float16, float32 or float64 (or bfloat16)";
}

// Finds the array in the bytes of a file.
inline std::string Parse(const std::string& file, Array* array) {
  std::string text;
  size_t begin = 0;
  std::string wrong = FindHeader(file, &text, &begin);
  if (!wrong.empty()) return wrong;
  Header header;
  if (!HeaderParser(text).Parse(&header)) {
    return "has a header that describes no plain array: write it with "
           "numpy.save() from an array of float16, float32 or float64";
  }
  const Descr* descr = nullptr;
  wrong = FindDescr(header.descr, &descr);
  if (!wrong.empty()) return wrong;
  // One dimension at most is the same in both orders.
  if (header.fortran_order && header.shape.size() > 1) {
    return "is in Fortran order: convert it with numpy.ascontiguousarray()";
  }
  if (header.shape.size() > kMaxDimensions) return kTooLarge;
  uint64_t elements = 1;
  for (int64_t size : header.shape) {
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(size),
                               &elements)) {
      return kTooLarge;
    }
  }
  const size_t available = file.size() - begin;
  if (available / descr->bytes < elements) return kTruncated;
  array->type = descr->type;
  array->shape = header.shape;
  array->data = begin;
  array->bytes = elements * descr->bytes;
  if (available != array->bytes) {
    return "is longer than its header says: copy or write it again";
  }
  return "";
}

}  // namespace npy
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_TOOLS_NPY_FORMAT_H_
