// Runs any host operator as a kernel, independent of its signature, on a stack of boxed values.
#include "fallback.h"

#include <ATen/core/stack.h>

#include <deque>
#include <unordered_set>

#include "generator.h"
#include "kernel.h"

namespace backend {
namespace {

using c10::IValue;
using MaybeTensors = c10::List<std::optional<at::Tensor>>;

// Some arguments of these operators (lengths, batch sizes) must be on the CPU, as with CUDA.
HostTensors host_tensors_of(const std::string& name) {
  static const auto* const allowed = new std::unordered_set<std::string>{"aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward"};
  return allowed->count(name) ? HostTensors::kAllowed : HostTensors::kScalarsOnly;
}

bool is_view(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto* alias = arguments.empty() ? nullptr : arguments[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

// The arguments of one call. The originals are kept, and host views replace them on the stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : schema_(op.schema()), kernel_(schema_.name().c_str(), host_tensors_of(schema_.name())), stack_(stack) {
    const size_t count = schema_.arguments().size();
    given_.assign(std::make_move_iterator(stack.end() - count), std::make_move_iterator(stack.end()));
    for (size_t i = 0; i < count; ++i) take(given_[i], schema_.arguments()[i]);
    kernel_.launch(is_view(schema_));
    for (size_t i = 0; i < count; ++i) stack[stack.size() - count + i] = host_value(given_[i], schema_.arguments()[i]);
  }

  void follow() {
    for (const auto& [tensor, host] : views_) follow_host_view(*tensor, host);
  }

  void finish() {
    follow();
    if (C10_UNLIKELY(faults().is_active)) {
      for (const auto& host : written_) kernel_.spoil(host);
    }
    for (auto& value : torch::jit::last(stack_, schema_.returns().size())) const_cast<IValue&>(value) = device_value(value);
  }

 private:
  static bool is_written(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

  void take(const IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      kernel_.takes(value.toTensor(), is_written(argument));
    } else if (value.isTensorList()) {
      lists_.push_back(value.toTensorVector());
      for (const auto& tensor : lists_.back()) kernel_.takes(tensor, is_written(argument));
    } else if (value.isOptionalTensorList()) {  // indices, which may be on the CPU or on the device
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        if (tensor && tensor->is_privateuseone()) kernel_.takes_device(tensor->device().index());
      }
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      kernel_.takes_device(check_device(value.toDevice().index()));
    }
  }

  at::Tensor view_of(const at::Tensor& tensor, const c10::Argument& argument) {
    auto host = host_view(tensor);
    if (tensor.defined() && tensor.is_privateuseone()) views_.emplace_back(&tensor, host);
    if (is_written(argument)) written_.push_back(host);
    return host;
  }

  IValue host_value(const IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) return view_of(value.toTensor(), argument);
    if (value.isTensorList()) {
      c10::List<at::Tensor> hosts;
      for (const auto& tensor : lists_[next_list_++]) hosts.push_back(view_of(tensor, argument));
      return hosts;
    }
    if (value.isOptionalTensorList()) {
      MaybeTensors hosts;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        hosts.push_back(tensor ? std::optional(host_view(*tensor)) : std::nullopt);
      }
      return hosts;
    }
    if (value.isDevice() && value.toDevice().type() == kDeviceType) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return host_generator(value.toGenerator());
    if (value.isNone() && *argument.type() == *generator_type()) return host_generator(default_generator(kernel_.device()));
    return value;
  }

  static const c10::TypePtr& generator_type() {
    static const auto* const type = new c10::TypePtr(c10::OptionalType::create(c10::GeneratorType::get()));
    return *type;
  }

  at::Tensor device_tensor(const at::Tensor& host) {
    for (const auto& [tensor, view] : views_) {
      if (view.unsafeGetTensorImpl() == host.unsafeGetTensorImpl()) return *tensor;
    }
    return kernel_.result(host);
  }

  IValue device_value(const IValue& value) {
    if (value.isTensor()) return device_tensor(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> results;
    for (const at::Tensor& host : value.toTensorVector()) results.push_back(device_tensor(host));
    return results;
  }

  const c10::FunctionSchema& schema_;
  Kernel kernel_;
  torch::jit::Stack& stack_;
  std::vector<IValue> given_;
  std::deque<std::vector<at::Tensor>> lists_;
  size_t next_list_ = 0;
  std::vector<std::pair<const at::Tensor*, at::Tensor>> views_;
  c10::SmallVector<at::Tensor, 1> written_;
};

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "The operator '", op.schema().name(),
                              "' is not implemented for fake_xpu, because it is not implemented for the CPU, whose kernels fake_xpu runs");
  Call call(op, *stack);
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } catch (const c10::Error& error) {
    call.follow();  // apply the changes that the kernel made to shapes and memory before it failed
    const std::string why = error.what_without_backtrace();
    TORCH_CHECK_WITH(OutOfMemoryError, why.find("DefaultCPUAllocator: ") == std::string::npos,
                     "fake_xpu out of memory: the host could not allocate memory for a result. ", why);
    throw;
  } catch (...) {
    call.follow();
    throw;
  }
  call.finish();
}

}  // namespace backend
