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

// Writes the bits that Philox 4x32-10 (Salmon et al. 2011) gives for `seed`, from the counter `offset` on.
void random_bits(uint32_t* to, uint64_t words, uint64_t seed, uint64_t offset);

}  // namespace simulated
