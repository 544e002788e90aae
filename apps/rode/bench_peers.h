// SPDX-License-Identifier: Apache-2.0
// Runs a script that times other implementations on the same shapes.
#pragma once

#include <string>

#include "support.h"

namespace rode::cli {

struct PeerRequest {
  std::string script;
  std::string only;  // comma list of peers; empty: all
  Json shapes;       // given to the script on its standard input
  int threads = 1;
  int repeat = 3;
  int warmup = 1;
};

// What the script prints, as JSON. The interpreter is $RODE_PYTHON or python3.
Json run_peers(const PeerRequest& request);

}  // namespace rode::cli
