// SPDX-License-Identifier: Apache-2.0
// The rates of the rest: what they are where only lr is given.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;

TEST(Rates, ARateOfTheRestThatWasNotGivenFollowsLr) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    const Method method = Method::by_name(info.name);
    const double lr = method.number("lr").value(), rest = method.number("lr_rest").value();
    Model a, b, c;
    Optimizer small(a.parameters(), method.with({{"lr", fmt::format("{}", lr / 64)}}));
    Optimizer set_later(b.parameters(), method), as_before(c.parameters(), method);
    set_later.set_option(0, "lr", lr / 64);
    EXPECT_EQ(*small.method().number("lr_rest"), rest / 64);
    EXPECT_EQ(small.method().number("lr_rho"), method.number("lr_rho"));
    for (Model* model : {&a, &b, &c}) model->draw(0);
    small.step();
    set_later.step();
    as_before.step();
    expect_same(Snapshot(a, small), Snapshot(b, set_later));
    EXPECT_FALSE(a.weights() == c.weights());
    // No rate at all.
    Model still;
    const auto before = still.weights();
    Settings none{{"lr", "0"}};
    if (method.number("lr_rho")) none.emplace_back("lr_rho", "0");
    Optimizer stopped(still.parameters(), method.with(none));
    EXPECT_EQ(stopped.method().number("lr_rest"), 0);
    const std::string table = stopped.routing_table();
    EXPECT_NE(table.find(" rest     0 "), std::string::npos) << table;
    still.draw(0);
    stopped.step();
    for (const Parameter& p : still.parameters()) {
      if (p.value.shape.rank() > 1) continue;
      EXPECT_EQ(still.weights().at(p.name), before.at(p.name)) << p.name;
    }
    // A rate that was given stays.
    EXPECT_EQ(method.with({{"lr_rest", "0.5"}, {"lr", "0.125"}}).number("lr_rest"), 0.5);
  }
}

}  // namespace
}  // namespace rode
