// Operators without a kernel of their own.
#pragma once

namespace fake_xpu {

// Gives every operator that has a kernel for the CPU, and none for this device yet, that kernel.
void register_remaining_operators();

}  // namespace fake_xpu
