// SPDX-License-Identifier: Apache-2.0
// Matrices that begin at zero: what becomes of them, and that a checkpoint remembers it.
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "api/support.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::TemporaryDirectory;

void clear(Model& model, std::size_t index) {
  const TensorView view = model.value(index).view();
  std::memset(view.data, 0, view.bytes());
}

void copy_weights(Model& from, Model& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to.value(i).view().data, from.value(i).bytes().data(),
                from.value(i).bytes().size());
  }
}

std::size_t first_matrix(Model& model) {
  const auto routed = route_parameters(model.parameters(), {});
  for (const RoutedParameter& entry : routed) {
    if (entry.treatment == Treatment::matrix) return entry.index;
  }
  return routed.size();
}

TEST(ZeroStart, IsTheRestsOrHeld) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed"}) {
    SCOPED_TRACE(name);
    Model left, held;
    const std::size_t zero = first_matrix(left);
    const std::string label = left.parameters()[zero].name;
    clear(left, zero);
    clear(held, zero);
    const Method method = Method::by_name(name);
    Optimizer rest(left.parameters(), method),
        hold(held.parameters(), method.with({{"on_zero", "hold"}}));
    const auto before = left.weights();
    left.run(rest, 3);
    held.run(hold, 3);
    EXPECT_FALSE(left.weights().at(label) == before.at(label));
    EXPECT_TRUE(held.weights().at(label) == before.at(label));
    EXPECT_TRUE(test::state_of(rest).contains("state." + label + ".exp_avg"));
    EXPECT_TRUE(test::state_of(hold).contains("state." + label + ".momentum"));
    EXPECT_NE(rest.routing_table().find("zero start"), std::string::npos);
    EXPECT_EQ(hold.routing_table().find("zero start"), std::string::npos);
  }
}

TEST(ZeroStart, IsRememberedByACheckpointBitForBit) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed"}) {
    SCOPED_TRACE(name);
    const TemporaryDirectory directory;
    Model whole, resumed;
    const std::size_t zero = first_matrix(whole);
    clear(whole, zero);
    const Method method = Method::by_name(name);
    Optimizer first(whole.parameters(), method);
    whole.run(first, 5);
    first.save(directory / "s");
    copy_weights(whole, resumed);
    Optimizer second(resumed.parameters(), method);
    EXPECT_EQ(second.routing_table().find("zero start"), std::string::npos);
    second.load(directory / "s");
    EXPECT_NE(second.routing_table().find("zero start"), std::string::npos);
    whole.run(first, 5);
    resumed.run(second, 5);
    expect_same(Snapshot(resumed, second), Snapshot(whole, first));

    // And of one that is a matrix in the file, though it is zero here.
    Model other, cleared;
    Optimizer full(other.parameters(), method);
    other.run(full, 2);
    full.save(directory / "m");
    clear(cleared, zero);
    Optimizer third(cleared.parameters(), method);
    EXPECT_NE(third.routing_table().find("zero start"), std::string::npos);
    third.load(directory / "m");
    EXPECT_EQ(third.routing_table().find("zero start"), std::string::npos);
    expect_same(test::state_of(third), test::state_of(full));
  }
}

TEST(ZeroStart, MayBeSaidByTheCaller) {
  Model model;
  const std::size_t index = first_matrix(model);
  auto parameters = model.parameters();
  parameters[index].zero_start = true;
  const Method method = RodeOptions{};
  Optimizer optimizer(parameters, method);
  EXPECT_NE(optimizer.routing_table().find("zero start"), std::string::npos);
  bool planned = false;
  for (const PlannedState& state : planned_state(parameters, method)) {
    planned = planned || (state.parameter == parameters[index].name && state.key == "exp_avg");
  }
  EXPECT_TRUE(planned);
}

}  // namespace
}  // namespace rode
