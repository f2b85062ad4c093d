// The devices of this process: how many there are, which one is current, and whether they can still be used.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace fake_xpu {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 64;

// Whether any of these needs a closer look before work starts: lost, forked or not initialised yet. One load on the step path.
extern std::atomic<bool> needs_attention;

// What the environment asked for, read by Python and given once, before the first use.
void configure(const std::vector<int64_t>& memory_limits, bool is_protected);

c10::DeviceIndex device_count() noexcept;
bool is_protected() noexcept;
int64_t memory_limit(c10::DeviceIndex device);

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device) noexcept;

// Raises unless `device` is one of ours; -1 means the current one.
c10::DeviceIndex check_device(c10::DeviceIndex device);

// The first use: from here on a forked child cannot use the devices.
bool is_initialized() noexcept;
bool is_in_bad_fork() noexcept;

// The slow half of ensure_usable.
void attend();

// Raises in a forked child and after the device was lost. To be called before anything runs on a device.
inline void ensure_usable() {
  if (C10_UNLIKELY(needs_attention.load(std::memory_order_relaxed))) attend();
}

// After this every use of any device raises torch.AcceleratorError with `reason`, as after a fault of real hardware.
[[noreturn]] void lose_device(const std::string& reason);

}  // namespace fake_xpu
