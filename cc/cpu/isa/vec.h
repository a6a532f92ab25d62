// The vectors of one ISA: loads, stores, conversions. All arithmetic in this
// folder is written with the operators that GCC and Clang give to vector types.
//
// Everything that differs between ISAs stands in one file each, vec_<name>.h
// with <name> the first column of isa_builds.txt. Such a file defines, in this
// order,
//
//   TFBN_VECTOR_BYTES, TFBN_REGISTERS   bytes of a vector, number of registers
//   #include "cc/cpu/isa/vec_portable.h"
//   namespace <name> {
//   using namespace portable;
//
// and in that namespace the functions below that it has instructions for;
// vec_portable.h has all of them. An ISA that adds instructions to another one
// includes that one's file and uses its namespace instead (vec_avx512bf16.h):
// what it defines itself hides what it would inherit, and all overloads of it
// (`using portable::StorePartialBits;` keeps them).
//
//   kBfloat16Alone                 its instructions are for bfloat16: of other
//                                  types the next build of the list has the
//                                  kernels
//   VF WidenFloat16(V16), WidenBfloat16(V16)
//   V16 NarrowFloat16(VF)          to nearest even, NaN stays NaN
//   V16 NarrowBfloat16(VF)         the same, but of NaN only those whose lower
//                                  16 bits are 0: what arithmetic makes of
//                                  bfloat16 and of default NaN
//   V16 KeepSubnormals(V16, VF v)  of NarrowBfloat16(v) and v: the former with
//                                  the subnormals that it may have flushed
//   Bfloat16Pairs                  two neighbouring vectors of bfloat16 at
//   once;
//                                  kDefined says whether there are such:
//     Stored                       their elements in memory, of kVectorBytes
//     Widen(Stored, VF (&)[2])     spreads them over two VF in an order of its
//     Stored Narrow(VF (&)[2])     own; and back, as NarrowBfloat16, but
//                                  subnormals are not flushed
//     Deinterleave(VF (&)[2])      lanes one after the other to that order
//     Interleave(VF (&)[2])        the way back
//   WideF Widen(VF)                to double
//   WideF LoadWide(const T*)       optional: load and widen T in one
//   V LoadPartialBits<V>(p, n), StorePartialBits(p, V, n)   the first n lanes
//   StoreNonTemporalBits(p, V)     p aligned to the size of V
//   NonTemporalFence()             orders non-temporal stores before later ones
//
// for V = VF, VD, V16 and the stored vector of every other element type. To add
// an ISA, write that file and add a line to isa_builds.txt.
//
// Included only by translation units of this folder, each of which is compiled
// once per line of isa_builds.txt. Everything has internal linkage: nothing of
// it may be shared between builds.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"

#if defined(__AVX2__)
// GCC 12 reports the deliberately undefined pass-through operands inside its
// own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(__SSE2__)
#include <emmintrin.h>  // 0.07 s a source; immintrin.h takes 0.7 s.
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef TF_BN_OPS_ISA
#error "TF_BN_OPS_ISA is the name of this build, see isa_builds.txt"
#endif
// "vec_<name>.h", beside this file.
#define TFBN_VEC_FILE_(name) vec_##name.h
#define TFBN_VEC_FILE(name) TFBN_VEC_FILE_(name)
#include TFBN_QUOTE(TFBN_VEC_FILE(TF_BN_OPS_ISA))

namespace tf_bn_ops {
namespace {

// The interface: each from the namespace that is nearest to the build's own.
namespace isa = TF_BN_OPS_ISA;
using isa::Bfloat16Pairs;
using isa::kBfloat16Alone;
using isa::KeepSubnormals;
using isa::LoadPartialBits;
using isa::LoadWide;
using isa::NarrowBfloat16;
using isa::NarrowFloat16;
using isa::NonTemporalFence;
using isa::StoreNonTemporalBits;
using isa::StorePartialBits;
using isa::Widen;
using isa::WidenBfloat16;
using isa::WidenFloat16;

// How elements of T lie in memory (a vector Stored of them) and what they are
// computed in (a vector Vector of Scalar).
template <typename T>
struct Compute {
  using Scalar = ComputeOf<T>;
  using Vector = std::conditional_t<std::is_same_v<Scalar, double>, VD, VF>;
  using Stored = std::conditional_t<kIsNarrow<T>, V16, Vector>;

  static TFBN_INLINE Vector Decode(Stored v) {
    if constexpr (std::is_same_v<T, Float16>) {
      return WidenFloat16(v);
    } else if constexpr (std::is_same_v<T, Bfloat16>) {
      return WidenBfloat16(v);
    } else {
      return v;
    }
  }
  static TFBN_INLINE Stored Encode(Vector v) {
    if constexpr (std::is_same_v<T, Float16>) {
      return NarrowFloat16(v);
    } else if constexpr (std::is_same_v<T, Bfloat16>) {
      return NarrowBfloat16(v);
    } else {
      return v;
    }
  }
};

template <typename T>
using VectorOf = typename Compute<T>::Vector;
template <typename T>
constexpr int kLanesOf =
    kVectorBytes / static_cast<int>(sizeof(typename Compute<T>::Scalar));

// A vector of elements, any alignment; the first n < kLanesOf<T> elements of
// one.
template <typename T>
TFBN_INLINE VectorOf<T> Load(const T* p) {
  return Compute<T>::Decode(LoadBits<typename Compute<T>::Stored>(p));
}
template <typename T>
TFBN_INLINE void Store(T* p, VectorOf<T> v) {
  StoreBits(p, Compute<T>::Encode(v));
}
template <typename T>
TFBN_INLINE VectorOf<T> LoadPartial(const T* p, int n) {
  return Compute<T>::Decode(LoadPartialBits<typename Compute<T>::Stored>(p, n));
}
template <typename T>
TFBN_INLINE void StorePartial(T* p, VectorOf<T> v, int n) {
  StorePartialBits(p, Compute<T>::Encode(v), n);
}

// Elements of an input that are passed on, not computed, as they are encoded:
// no arithmetic has made a NaN a quiet one.
TFBN_INLINE VF Quiet(VF v) {
  return (VF)((VU)v | ((VU)(v != v) & 0x00400000u));
}
// What is stored of them: their subnormals are not flushed.
template <typename T>
TFBN_INLINE typename Compute<T>::Stored EncodePassedOn(VectorOf<T> v) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return KeepSubnormals(NarrowBfloat16(Quiet(v)), v);
  } else {
    return Compute<T>::Encode(v);
  }
}

// Neighbouring vectors of elements that are loaded, and stored, at once: one,
// or a pair, whose elements the ISA has in an order of its own.
template <typename T>
struct PairsOf {
  static constexpr bool kDefined = false;
};
template <>
struct PairsOf<Bfloat16> : Bfloat16Pairs {};

template <typename T, int kVectors>
struct VectorPack {
  using V = VectorOf<T>;
  using Stored = typename std::conditional_t<kVectors == 1, Compute<T>,
                                             PairsOf<T>>::Stored;

  static TFBN_INLINE void Load(const T* p, V (&v)[kVectors]) {
    if constexpr (kVectors == 1) {
      v[0] = tf_bn_ops::Load(p);
    } else {
      PairsOf<T>::Widen(LoadBits<Stored>(p), v);
    }
  }
  static TFBN_INLINE Stored Encode(const V (&v)[kVectors]) {
    if constexpr (kVectors == 1) {
      return Compute<T>::Encode(v[0]);
    } else {
      return PairsOf<T>::Narrow(v);
    }
  }
  static TFBN_INLINE Stored EncodePassedOn(const V (&v)[kVectors]) {
    if constexpr (kVectors == 1) {
      return tf_bn_ops::EncodePassedOn<T>(v[0]);
    } else {
      return PairsOf<T>::Narrow({Quiet(v[0]), Quiet(v[1])});
    }
  }
};

// Vectors of a pack in a strip of kVectors.
template <typename T, int kVectors>
constexpr int kMostPacked = PairsOf<T>::kDefined && kVectors % 2 == 0 ? 2 : 1;

// Which columns the lanes of kVectors vectors have: one after the other, or in
// the order of packs.
enum class LaneOrder { kColumns, kPacks };

// Brings what a strip has for each of its columns from the other order to kTo;
// the values from kFirst on.
template <LaneOrder kTo, typename T, int kPack, int kFirst, int kVectors,
          int kN, typename V>
TFBN_INLINE void Reorder(V (&v)[kVectors][kN]) {
  if constexpr (kPack == 2) {
    for (int u = 0; u < kVectors; u += 2) {
      for (int i = kFirst; i < kN; ++i) {
        V pair[2] = {v[u][i], v[u + 1][i]};
        if constexpr (kTo == LaneOrder::kPacks) {
          PairsOf<T>::Deinterleave(pair);
        } else {
          PairsOf<T>::Interleave(pair);
        }
        v[u][i] = pair[0];
        v[u + 1][i] = pair[1];
      }
    }
  }
}

TFBN_INLINE WideD Widen(VD v) { return WideD{{v}}; }

// A vector of elements as doubles. An ISA that loads and widens in one
// instruction overloads it, which saves taking the vector apart again. (Not
// worth it for bfloat16, whose way to float takes two instructions.)
template <typename T>
TFBN_INLINE auto LoadWide(const T* p) {
  return Widen(Load(p));
}

}  // namespace
}  // namespace tf_bn_ops
