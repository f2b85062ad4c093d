// The device guard: the functions for devices, streams and events that torch calls on any device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device.h"
#include "memory.h"
#include "streams.h"

#if __has_include(<c10/core/DeviceCapability.h>)
#include <c10/core/DeviceCapability.h>
#endif

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
  // The dtypes that the device supports. The CPU computes what has no kernel here, so these are the CPU's dtypes.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    using namespace c10;  // the macros with the names of the bits need this namespace
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

}  // namespace
}  // namespace backend
