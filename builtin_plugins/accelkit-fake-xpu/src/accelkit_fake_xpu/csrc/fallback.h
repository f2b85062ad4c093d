// Kernels for operators that have no kernel for this device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace backend {

// Registers the CPU's kernel for every operator that has no kernel here. Called once, after all other kernels are registered.
void register_remaining_operators();

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace backend
