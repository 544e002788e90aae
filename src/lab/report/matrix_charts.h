// SPDX-License-Identifier: Apache-2.0
// Radius and angle of every matrix: what the method moves.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/report/chart.h"
#include "lab/report/comparison.h"
#include "lab/report/curves.h"

namespace rode::lab {

// "model.layers.3.self_attn.q_proj.weight": kind "self_attn.q_proj" of "layer 3".
struct MatrixName {
  std::string kind;
  std::string layer;  // empty for one that is not part of a layer
};
MatrixName parse_matrix_name(const std::string& name);

// Over all matrices, a curve per optimizer: radius relative to the start; and where the log has
// them (RODE), per step: angle, relative change of the radius, norm q of the conditioned momentum,
// damping.
NamedCharts matrix_summaries(const Comparison& comparison);

// A panel per kind of matrix with a curve per layer; one grid per optimizer and figure.
std::vector<std::pair<std::string, ChartGrid>> matrix_grids(const Comparison& comparison);

}  // namespace rode::lab
