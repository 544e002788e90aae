// SPDX-License-Identifier: Apache-2.0
// Shows that an installed rode can be included, linked and called.
#include <iostream>

#include <rode/version.h>

int main() {
  std::cout << "rode " << rode::version() << '\n';
  return 0;
}
