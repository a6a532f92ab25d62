// What plan and driver ask of a formula, as data and functions: they are no
// templates.

#pragma once

#include <cstdint>
#include <string>

#include "cc/core/call.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/plan.h"

namespace tf_bn_ops {

// A formula of cc/core/formulas, whose functions these are.
struct FormulaEntry {
  FormulaTraits traits;
  int num_sums, num_frozen_sums, num_coefficients;
  Tensors (*tensors)(const Call&);
  // Before the first pass: writes the centers of channels [c0, c1), the
  // coefficients of the mask (those from kFirstMaskCoefficient on), and, where
  // they need no sums of this call, the others.
  void (*prepare)(const Call&, int64_t c0, int64_t c1, double* centers,
                  void* coefficients);
  // From the sums over the view, which are changed: writes the coefficients
  // that they decide, unless `coefficients` is nullptr, and the outputs of
  // shape [channels].
  void (*finish)(const Call&, int64_t c0, int64_t c1, const double* centers,
                 const ChannelSums&, void* coefficients);
  void (*store_empty)(const Call&);

  // Where there is an early output: the tensors of the pass that stores it, the
  // formula that then applies, its call, and which of its inputs it is.
  struct EarlyOutput {
    Tensors (*tensors)(const Call&);
    FormulaIndex second_pass;
    Call (*second_call)(const Call&);
    int input;
  } early;
};

const FormulaEntry& EntryOf(FormulaIndex formula);

// The formula called `name`; kNumFormulas if there is none.
int FindFormula(const std::string& name);

}  // namespace tf_bn_ops
