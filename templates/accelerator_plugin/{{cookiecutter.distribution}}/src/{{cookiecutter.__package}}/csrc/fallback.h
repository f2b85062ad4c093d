// The way to the CPU, for kernels that take only some of their operator's arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace backend {

// Registers the CPU's kernel for every operator that has no kernel here. Called once, after all other kernels are registered.
void register_remaining_operators();

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Runs an operator on the CPU: `on_host<at::_ops::mm>(self, other)`.
template <class Operator, class... Arguments>
auto on_host(const Arguments&... arguments) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
  torch::jit::Stack stack{c10::IValue(arguments)...};
  run_on_host(op, &stack);
  return stack.front().toTensor();
}

}  // namespace backend
