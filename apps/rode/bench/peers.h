// SPDX-License-Identifier: Apache-2.0
// Runs a script that times other implementations on the same shapes.
#pragma once

#include <string>
#include <vector>

#include "support.h"

namespace rode::cli {

struct PeerRequest {
  std::string script;
  std::string only;  // comma list of peers; empty: all
  Json shapes;       // given to the script on its standard input
  int threads = 1;
  int repeat = 3;
  int warmup = 1;
  std::vector<std::string> more = {};  // arguments that only this script knows
};

// The path of a script of bench/peers: below the current folder, or above the program in the
// tree it was built in; its plain name where it is in neither.
std::string find_peers(const std::string& script);

// What the script prints, as JSON. The interpreter is $RODE_PYTHON or python3.
Json run_peers(const PeerRequest& request);

}  // namespace rode::cli
