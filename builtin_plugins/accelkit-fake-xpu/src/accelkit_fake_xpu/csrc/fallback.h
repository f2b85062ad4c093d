// Kernels for operators that have no kernel for this device.
#pragma once

namespace backend {

// Registers the CPU kernel of every operator that has no kernel for this device.
void register_remaining_operators();

}  // namespace backend
