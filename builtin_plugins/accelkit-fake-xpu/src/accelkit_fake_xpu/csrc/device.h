// The devices of this process: their number, the current device, and whether they can still be used.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace backend {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 64;

// Whether the devices are lost, forked or not initialised, so that attend() must be called before work starts. Costs one load on the step path.
extern std::atomic<bool> needs_attention;

// Sets the configuration, which Python reads from the environment. Called once, before the first use.
void configure(const std::vector<int64_t>& memory_limits, bool is_protected);

c10::DeviceIndex device_count() noexcept;
inline c10::DeviceIndex checked_device_count() { return device_count(); }  // hardware may not be able to count its devices
bool is_protected() noexcept;
int64_t memory_limit(c10::DeviceIndex device);

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device) noexcept;

// The name of the hardware, and the bytes of its memory.
std::pair<std::string, int64_t> device_properties(c10::DeviceIndex device);

// Throws an exception if `device` does not exist; -1 means the current device.
c10::DeviceIndex check_device(c10::DeviceIndex device);

// True once the devices have been used. From then on, a forked child cannot use them.
bool is_initialized() noexcept;
bool is_in_bad_fork() noexcept;

// The slow path of ensure_usable.
void attend();

// Throws an exception in a forked child and after a device was lost. Call it before any work on a device.
inline void ensure_usable() {
  if (C10_UNLIKELY(needs_attention.load(std::memory_order_relaxed))) attend();
}

// Makes every later use of any device raise torch.AcceleratorError with `reason`, as after a fault of real hardware.
[[noreturn]] void lose_device(const std::string& reason);

}  // namespace backend
