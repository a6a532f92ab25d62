// Lists the arrays of a call by element type, and checks where they begin.

#include "cc/c_api/alignment.h"

#include <cstdint>
#include <initializer_list>

#include "cc/core/dtype.h"

namespace tf_bn_ops {
namespace c_api {
namespace {

// By the name of its field; nullptr is none.
struct Array {
  const char* name;
  const void* data;
};

// Allocates nothing where all are aligned.
std::string Check(DType dtype, std::initializer_list<Array> arrays) {
  const uintptr_t below = SizeOf(dtype) - 1;  // Sizes are powers of two.
  for (const Array& array : arrays) {
    if ((reinterpret_cast<uintptr_t>(array.data) & below) != 0) {
      return std::string(array.name) + " must be aligned to its element type";
    }
  }
  return "";
}

}  // namespace

std::string CheckAlignment(const Call& call) {
  std::string sentence =
      Check(call.dtype, {{"x", call.x},
                         {"side_input", call.side_input},
                         {"y", call.y},
                         {"y_backprop", call.y_backprop},
                         {"x_backprop_grad", call.x_backprop_grad},
                         {"x_backprop", call.x_backprop},
                         {"side_input_backprop", call.side_input_backprop},
                         {"y_backprop_grad", call.y_backprop_grad},
                         {"x_grad", call.x_grad}});
  if (sentence.empty()) {
    sentence = Check(call.stat_dtype,
                     {{"scale", call.scale},
                      {"offset", call.offset},
                      {"scale_backprop_grad", call.scale_backprop_grad},
                      {"offset_backprop_grad", call.offset_backprop_grad},
                      {"batch_mean", call.batch_mean},
                      {"batch_variance", call.batch_variance},
                      {"saved_mean", call.saved_mean},
                      {"saved_variance", call.saved_variance},
                      {"scale_backprop", call.scale_backprop},
                      {"offset_backprop", call.offset_backprop},
                      {"scale_grad", call.scale_grad}});
  }
  if (sentence.empty()) {
    sentence = Check(StatisticsDTypeOf(call),
                     {{"mean", call.mean}, {"variance", call.variance}});
  }
  if (sentence.empty()) {
    sentence = Check(ComputeDTypeOf(call.dtype),
                     {{"forward_coefficients", call.forward_coefficients}});
  }
  if (sentence.empty()) {
    sentence = Check(DType::kFloat64, {{"mean", call.mean64},
                                       {"m2", call.m2},
                                       {"sum_dy", call.sum_dy},
                                       {"sum_dy_xmu", call.sum_dy_xmu},
                                       {"sum_dy", call.total_dy},
                                       {"sum_dy_xmu", call.total_dy_xmu}});
  }
  return sentence;
}

std::string CheckAlignment(const GatherStatsArgs& args) {
  return Check(DType::kFloat64, {{"counts", args.counts},
                                 {"means", args.means},
                                 {"m2s", args.m2s},
                                 {"count", args.count},
                                 {"mean", args.mean},
                                 {"m2", args.m2}});
}

}  // namespace c_api
}  // namespace tf_bn_ops
