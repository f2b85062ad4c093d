// Runs every operator that has no kernel here on the CPU: its tensors are copied to the host, and its results back. This is slow, but correct.
#include "fallback.h"

#include <ATen/native/CPUFallback.h>

#include <unordered_set>

#include "device.h"
#include "generator.h"

namespace backend {
namespace {

using c10::IValue;

// Some arguments of these operators (lengths, batch sizes) must be on the CPU, as with CUDA.
bool takes_host_tensors(const std::string& name) {
  static const auto* const names = new std::unordered_set<std::string>{"aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward"};
  return names->count(name) > 0;
}

// Finds the device of a call, and refuses tensors of two devices, which the copies would hide.
class Call {
 public:
  Call(const c10::FunctionSchema& schema, torch::jit::Stack* stack) : schema_(schema) {
    const auto given = torch::jit::last(*stack, schema.arguments().size());
    for (size_t i = 0; i < given.size(); ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      if (given[i].isTensor()) take(given[i].toTensor(), is_written);
      if (given[i].isTensorList()) {
        for (const auto& tensor : given[i].toTensorVector()) take(tensor, is_written);
      }
      if (given[i].isDevice() && given[i].toDevice().type() == kDeviceType) take(given[i].toDevice());
    }
    if (device_ && stranger_ && !takes_host_tensors(schema.name())) refuse(*stranger_);
  }

  bool has_device() const { return device_.has_value(); }
  c10::DeviceIndex device() const { return device_ ? check_device(device_->index()) : current_device(); }

 private:
  void take(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return;
    if (tensor.is_privateuseone()) {
      take(tensor.device());
    } else if (tensor.dim() > 0 || is_written) {  // a CPU scalar may be read
      stranger_ = tensor.device();
    }
  }
  void take(c10::Device device) {
    if (!device_) device_ = device;
    if (*device_ != device) refuse(device);
  }
  void refuse(c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_, " and ", other,
                "! (when checking arguments of ", schema_.name(), ")");
  }

  const c10::FunctionSchema& schema_;
  std::optional<c10::Device> device_, stranger_;
};

// Replaces the device's generator, or a missing generator, by a generator of the host.
void replace_generators(const c10::FunctionSchema& schema, torch::jit::Stack* stack, c10::DeviceIndex device) {
  static const auto* const optional_generator = new c10::TypePtr(c10::OptionalType::create(c10::GeneratorType::get()));
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[stack->size() - count + i];
    if (value.isGenerator()) {
      value = host_generator(value.toGenerator());
    } else if (value.isNone() && *schema.arguments()[i].type() == **optional_generator) {
      value = host_generator(default_generator(device));
    }
  }
}

// Moves results that are on the CPU to the device. cpu_fallback puts the results on the device of the first tensor, which may be a scalar on
// the CPU: in `1 - tensor`, it is the number 1. Moving the scalar to the device before the call would be wrong. The scalar would become an
// ordinary tensor, whose dtype affects the dtype of the result. The dtype of a number does not.
void move_results(const c10::FunctionSchema& schema, torch::jit::Stack* stack, c10::Device device) {
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu()) {
      value = value.toTensor().to(device);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> moved;
      for (const auto& tensor : value.toTensorVector()) moved.push_back(tensor.to(device));
      value = moved;
    }
  }
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_usable();
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "The operator '", op.schema().operator_name(),
                              "' is not implemented for ", BACKEND_NAME, ", and not for the CPU either");
  const Call call(op.schema(), stack);
  const c10::OptionalDeviceGuard guard(c10::Device(kDeviceType, call.device()));
  replace_generators(op.schema(), stack, call.device());
  try {
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    TORCH_CHECK_WITH(OutOfMemoryError, why.find("DefaultCPUAllocator: ") == std::string::npos, BACKEND_NAME,
                     " out of memory: the host could not allocate memory for a result. ", why);
    throw;
  }
  if (call.has_device()) move_results(op.schema(), stack, guard.current_device().value());
}

}  // namespace backend
