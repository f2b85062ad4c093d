// Registers the CPU's kernel for every operator of torch that has no kernel here.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "fallback.h"

namespace backend {

void register_remaining_operators() {
  // Makes operators without a derivative raise an error in backward. torch does this for its own devices, and since 2.10 for others.
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(c10::DispatchKey::AutogradPrivateUse1)) {
    static auto* const autograd = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
    autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  }
  // An operator that is composed of others may have a CPU kernel that is more accurate or faster. Then the CPU kernel is used.
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    const bool is_composed = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);  // the operators that it calls are differentiated
    if (op->hasSchema() && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
        !is_composed) {
      const std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    }
  }
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

// torch has a kernel of conj_physical_ for all devices, but it calls another kernel, which each device must register.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("conj_physical_", torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

}  // namespace
}  // namespace backend
