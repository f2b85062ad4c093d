// The kernels of the simulated driver, which compute on the host.
#pragma once

#include <cstdint>

namespace simulated {

struct Argument {
  char* memory;  // null if the argument is a number
  int64_t integer;
  double real;
};

using Kernel = void (*)(const Argument* arguments);

// Returns the kernel with this name. Null if there is none.
Kernel find_kernel(const char* name);

}  // namespace simulated
