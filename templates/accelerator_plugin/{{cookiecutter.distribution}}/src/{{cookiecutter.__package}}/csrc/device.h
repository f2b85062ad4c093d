// The devices of this process, errors of the driver, and the current device of each thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "driver.h"

namespace backend {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 64;

// Throws the exception of torch that fits a status, with the driver's text.
[[noreturn]] void raise(driver_status status, const char* call);

#define DRIVER_CHECK(CALL) \
  do { \
    if (const driver_status driver_check_status = (CALL); C10_UNLIKELY(driver_check_status != DRIVER_OK)) raise(driver_check_status, #CALL); \
  } while (false)

// The number of devices. Leaves the process able to fork.
c10::DeviceIndex device_count() noexcept;

// The name of the hardware.
std::string device_name(c10::DeviceIndex device);

// Throws an exception if `device` does not exist; -1 means the current device.
c10::DeviceIndex check_device(c10::DeviceIndex device);

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device) noexcept;

// True from the first use on. Afterwards, a forked child cannot use the devices.
bool is_initialized() noexcept;
bool is_in_bad_fork() noexcept;

extern std::atomic<bool> needs_attention;
void initialize();

// Initialises the driver at the first use, and throws an exception in a forked child. Call it before any other call of the driver.
inline void ensure_usable() {
  if (C10_UNLIKELY(needs_attention.load(std::memory_order_relaxed))) initialize();
}

}  // namespace backend
