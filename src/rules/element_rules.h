// SPDX-License-Identifier: Apache-2.0
// The list of element-wise rules; the backends expand it.
//
// An element rule is a type with
//   kMoments, kKeys     its arrays of the parameter's size, in the order that element() sees them
//   kQuantizesFirst     state_dtype = int8 is for the first of them, and the others stay fp32;
//                       where false, it is refused
//   kCountsSteps        keeps `step`, the number of the parameter's gradients
//   kAveragesSquares    a gradient must have squares that fp32 can hold
//   Constants           what follows from the options alone
//   Coefficients        what all elements share in one step
//   coefficients(constants, multiplier, t)
//                       t counts the parameter's gradients from 1 (0 where they are not counted)
//   element(coefficients, w, g, moments)
//                       the new weight; the moments advance in place
// One that has cautious decay is two types, so that the plain one costs nothing more. Both have the
// same Constants, whose `cautious` chooses, and
//   Cautious            the type with it
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "rules/adamw_rule.h"
#include "rules/ademamix_rule.h"
#include "rules/lion_rule.h"
#include "rules/sgd_rule.h"

// A macro, because the CPU's loops are compiled for several instruction sets by an attribute that
// templates cannot have.
#define RODE_FOR_EACH_ELEMENT_RULE(X) \
  X(AdamW)                            \
  X(AdEMAMix)                         \
  X(Lion)                             \
  X(Sgd)                              \
  X(CautiousAdamW)                    \
  X(CautiousLion)

namespace rode::rules {

inline constexpr int kMostMoments = 3;

// One of the rules with its constants.
template <class Rule>
struct ElementConstants {
  const typename Rule::Constants* values = nullptr;
};

// Storage for Part<Rule> of any one rule; its owner knows which by the rule's index.
template <template <class> class Part, class... Rules>
struct OneOf {
  static_assert(((alignof(Part<Rules>) <= 8) && ...));
  alignas(8) unsigned char bytes[std::max({sizeof(Part<Rules>)...})];

  template <class T>
  RODE_HOST_DEVICE T& as() {
    return *reinterpret_cast<T*>(bytes);
  }
  template <class T>
  RODE_HOST_DEVICE const T& as() const {
    return *reinterpret_cast<const T*>(bytes);
  }
};

template <class Rule>
using ConstantsOf = typename Rule::Constants;
template <class Rule>
using CoefficientsOf = typename Rule::Coefficients;

template <class... Rules>
struct ElementRuleList {
  static_assert(((Rules::kMoments <= kMostMoments) && ...));
  using Variant = std::variant<ElementConstants<Rules>...>;  // its index() is the rule's
  using AnyConstants = OneOf<ConstantsOf, Rules...>;
  using AnyCoefficients = OneOf<CoefficientsOf, Rules...>;

  // Calls f.operator()<Rule>() for the rule of this index.
  template <class F>
  RODE_HOST_DEVICE static void visit(std::int32_t index, F&& f) {
    std::int32_t at = 0;
    (void)((at++ == index ? (f.template operator()<Rules>(), true) : false) || ...);
  }

  // The same for every rule, in the order of their indices.
  template <class F>
  static void for_each(F&& f) {
    (f.template operator()<Rules>(), ...);
  }
};

// The macro has no separator between its entries: a leading one, dropped here.
template <class, class... Rules>
struct DropFirst {
  using List = ElementRuleList<Rules...>;
};
#define RODE_NEXT_RULE(Rule) , Rule
using ElementRules = DropFirst<void RODE_FOR_EACH_ELEMENT_RULE(RODE_NEXT_RULE)>::List;
#undef RODE_NEXT_RULE

}  // namespace rode::rules
