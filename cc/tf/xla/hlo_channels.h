// What the formulas in XLA's own operations (hlo_forward.h, hlo_gradient.h,
// hlo_second_order.h) are written with: a call whose arrays are values of the
// computation that is built; sums and broadcasts over channels, in two
// precisions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/call.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"
#include "xla/shape_util.h"
#include "xla/xla_data.pb.h"

namespace tf_bn_ops {

// A call whose arrays are values, by role; invalid where there is none. The
// outputs are set by what builds them.
struct XlaCall {
  xla::XlaOp& operator[](Role role) { return arrays[static_cast<int>(role)]; }
  const xla::XlaOp& operator[](Role role) const {
    return arrays[static_cast<int>(role)];
  }
  bool Has(Role role) const { return (*this)[role].valid(); }

  Call call;            // Without arrays.
  int channel_dim = 0;  // The dimension of x that is view.channels.
  xla::Shape shape;     // Of x.
  xla::PrimitiveType stat_type = xla::F64;
  std::vector<Role> outputs;  // The op's.
  xla::XlaOp arrays[kNumRoles];
};

// Between tensors of the shape of x and vectors of one element per channel.
// Sums and vectors are computed in float64, elements in float32 (in float64 if
// they are of that type).
class XlaChannels {
 public:
  explicit XlaChannels(const XlaCall& of)
      : builder_(of[Role::kX].builder()),
        of_(of),
        compute_(of.shape.element_type() == xla::F64 ? xla::F64 : xla::F32) {
    for (int i = 0; i < static_cast<int>(of.shape.dimensions().size()); ++i) {
      if (i != of.channel_dim) others_.push_back(i);
    }
  }

  static xla::XlaOp Wide(xla::XlaOp v) {
    return xla::ConvertElementType(v, xla::F64);
  }
  xla::XlaOp Wide(Role role) const { return Wide(of_[role]); }
  // A tensor in the type in which elements are computed.
  xla::XlaOp Narrow(xla::XlaOp v) const {
    return xla::ConvertElementType(v, compute_);
  }
  // A vector, broadcast to the shape of x in its own type.
  xla::XlaOp Broadcast(xla::XlaOp v) const {
    return xla::BroadcastInDim(v, of_.shape.dimensions(), {of_.channel_dim});
  }
  // A float64 vector, rounded and broadcast for computing elements.
  xla::XlaOp Spread(xla::XlaOp v) const { return Broadcast(Narrow(v)); }

  // The first element of each channel of a tensor; zero where there is none.
  xla::XlaOp First(xla::XlaOp v) const {
    const int64_t channels = of_.call.view.channels;
    if (IsEmpty()) {
      return xla::Zeros(builder_, xla::ShapeUtil::MakeShape(
                                      of_.shape.element_type(), {channels}));
    }
    const size_t rank = of_.shape.dimensions().size();
    const std::vector<int64_t> start(rank, 0), strides(rank, 1);
    std::vector<int64_t> limit(rank, 1);
    limit[of_.channel_dim] = channels;
    return xla::Reshape(xla::Slice(v, start, limit, strides), {channels});
  }

  // The sum of each channel, in float64.
  xla::XlaOp Sum(xla::XlaOp v) const {
    return xla::Reduce(Wide(v), xla::Zero(builder_, xla::F64),
                       xla::CreateScalarAddComputation(xla::F64, builder_),
                       others_);
  }
  xla::XlaOp Mean(xla::XlaOp v) const {
    const xla::XlaOp sum = Sum(v);
    return sum / Count(sum);
  }
  // M, the number of elements of a channel, beside `like`.
  xla::XlaOp Count(xla::XlaOp like) const {
    return xla::ScalarLike(
        like, static_cast<double>(ElementsPerChannel(of_.call.view)));
  }

  // v - vector for computing elements, without loss to cancellation: the
  // float64 vector is subtracted in two parts. (Infinity minus infinity would
  // be NaN.)
  xla::XlaOp Minus(xla::XlaOp v, xla::XlaOp vector) const {
    const xla::XlaOp part = Narrow(vector);
    const xla::XlaOp rest =
        xla::Select(xla::IsFinite(vector), Narrow(vector - Wide(part)),
                    xla::ZerosLike(part));
    return (Narrow(v) - Broadcast(part)) - Broadcast(rest);
  }

  // sqrt(variance + epsilon), of a float64 vector. XLA leaves out an addition
  // of 0, which makes -0 a 0, whose root has a positive reciprocal.
  xla::XlaOp Deviation(xla::XlaOp variance) const {
    const xla::XlaOp zero = xla::ZerosLike(variance);
    if (of_.call.epsilon == 0) {
      variance = xla::Select(xla::Eq(variance, zero), zero, variance);
    }
    return xla::Sqrt(variance + xla::ScalarLike(variance, of_.call.epsilon));
  }
  xla::XlaOp Rstd(xla::XlaOp variance) const {
    return xla::ScalarLike(variance, 1.0) / Deviation(variance);
  }

  // Results in the types of the op's outputs.
  xla::XlaOp Elements(xla::XlaOp v) const {
    return xla::ConvertElementType(v, of_.shape.element_type());
  }
  xla::XlaOp Vector(xla::XlaOp v) const {
    return xla::ConvertElementType(v, of_.stat_type);
  }
  // The same of a sum, which is 0 where there are no elements, whatever rstd
  // is.
  xla::XlaOp VectorOfSum(xla::XlaOp v) const {
    const xla::XlaOp vector = Vector(v);
    return IsEmpty() ? xla::ZerosLike(vector) : vector;
  }

  bool IsEmpty() const { return NumElements(of_.call.view) == 0; }

 private:
  xla::XlaBuilder* const builder_;
  const XlaCall& of_;
  const xla::PrimitiveType compute_;
  std::vector<int64_t> others_;  // All dimensions but the channels'.
};

}  // namespace tf_bn_ops
