// The accelerator hooks, with which torch.accelerator, pinned memory and generators reach the device, and the functions that Python calls.
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/library.h>

#include "device.h"
#include "fallback.h"
#include "generator.h"
#include "memory.h"

namespace backend {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  void init() const override { ensure_usable(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(check_device(device)); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
  at::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, BACKEND_NAME, " cannot determine the device of a bare pointer");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize_storage(storage, bytes); }
};

c10::DeviceIndex index(int64_t device) { return static_cast<c10::DeviceIndex>(device); }

// Defines the functions of torch.ops.NAME, where NAME is the name of the device.
void define_functions() {
  static torch::Library library(torch::Library::DEF, BACKEND_NAME, std::nullopt, __FILE__, __LINE__);
  library.def("register_remaining_operators() -> ()", &register_remaining_operators);
  library.def("is_available() -> bool", [] { return device_count() > 0; });
  library.def("device_count() -> int", [] { return static_cast<int64_t>(checked_device_count()); });
  library.def("device_properties(int device) -> (str, int)", [](int64_t device) {
    const auto [name, total_memory] = device_properties(index(device));
    return std::make_tuple(name, total_memory);
  });
  library.def("is_initialized() -> bool", [] { return is_initialized(); });
  library.def("is_in_bad_fork() -> bool", [] { return is_in_bad_fork(); });
  library.def("init() -> ()", [] { ensure_usable(); });
  library.def("get_rng_state(int device) -> Tensor", [](int64_t device) { return default_generator(index(device)).get_state(); });
  library.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const at::Tensor& state) {
    auto generator = default_generator(index(device));
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  });
  library.def("default_generator(int device) -> Generator?", [](int64_t device) { return default_generator(index(device)); });
  library.def("manual_seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    auto generator = default_generator(index(device));
    std::lock_guard lock(generator.mutex());
    generator.set_current_seed(static_cast<uint64_t>(seed));
  });
  library.def("initial_seed(int device) -> int", [](int64_t device) { return static_cast<int64_t>(default_generator(index(device)).current_seed()); });
  library.def("memory_info(int device) -> int[]", [](int64_t device) {
    const auto [free, total] = memory_info(index(device));
    return std::vector<int64_t>{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  });
}

const bool are_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  register_allocators();
  define_functions();
  return true;
}();

}  // namespace
}  // namespace backend
