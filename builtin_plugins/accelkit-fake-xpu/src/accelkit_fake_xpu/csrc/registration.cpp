// Registers the device with torch: the device guard, the accelerator hooks, the allocator, and the operators that Python calls.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "device.h"
#include "fallback.h"
#include "faults.h"
#include "generator.h"
#include "kernel.h"
#include "memory.h"
#include "pinned.h"
#include "streams.h"

namespace backend {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(check_device(device.index())); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device(device.index()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    if (device != before) setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
#if __has_include(<c10/core/DeviceCapability.h>)
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    using namespace c10;  // the macros with the names of the bits need it
    DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto dtype : {kIndex_Bool, kIndex_Byte, kIndex_Char, kIndex_Short, kIndex_Int, kIndex_Long, kIndex_UInt16, kIndex_UInt32, kIndex_UInt64,
                             kIndex_Half, kIndex_BFloat16, kIndex_Float, kIndex_Double, kIndex_ComplexHalf, kIndex_ComplexFloat, kIndex_ComplexDouble,
                             kIndex_Float8_e5m2, kIndex_Float8_e4m3fn, kIndex_Float8_e5m2fnuz, kIndex_Float8_e4m3fnuz, kIndex_Float8_e8m0fnu}) {
      capability.capability_data.capability_bits |= 1ULL << dtype;
    }
    return capability;
  }
#endif

  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, check_device(device.index())), id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_stream(check_device(device.index()))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, next_stream(device.index())); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), exchange_stream(check_device(next.device_index()), next.id()));
  }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream.device_index(), stream.id()); }
  void synchronizeStream(const c10::Stream& stream) const override { drain(stream.device_index(), stream.id()); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { drain_device(check_device(device)); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override { device_allocator().recordStream(data, stream); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    record_event(event, stream.device_index(), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override { wait_event(event, stream.device_index(), stream.id()); }
  bool queryEvent(void* event) const override { return is_event_done(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override { return elapsed_milliseconds(start, end); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy_event(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

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
    TORCH_CHECK_NOT_IMPLEMENTED(false, "fake_xpu cannot determine the device of a bare pointer");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize_storage(storage, bytes); }
};

void configure_once(std::vector<int64_t> limits, bool is_protected) {
  configure(limits, is_protected);
  static const bool is_registered = [] {
    register_remaining_operators();
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kDeviceType, &device_allocator());
    register_pinned_allocator();
    return true;
  }();
  (void)is_registered;
}

c10::DeviceIndex index(int64_t device) { return static_cast<c10::DeviceIndex>(device); }

TORCH_LIBRARY(fake_xpu, library) {
  library.def("configure(int[] memory_limits, bool is_protected) -> ()", &configure_once);
  library.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
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
  library.def("kernel_count(int device) -> int", [](int64_t device) { return kernel_count(index(device)); });
  library.def("reset_kernel_counts() -> ()", &reset_kernel_counts);
  library.def("set_faults(int oom_at, int lost_at, str nan_operator, str wrong_operator, int copy_milliseconds, int first_call_milliseconds) -> ()",
              &set_faults);
}

}  // namespace
}  // namespace backend
