// The devices of this process, errors of the driver, and the current device of each thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>
#include <utility>

#include "driver.h"

namespace backend {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 64;

// Throws the exception of torch that fits a status, with the driver's text.
[[noreturn]] void raise(driver_status status, const char* call, const std::string& text = driver_error_text());

// For a call that failed where nothing can be thrown, such as in a destructor: prints a warning once, and raise_late_error(), which is called
// when a device is synchronised, throws the first such error.
void raise_late(driver_status status, const char* call) noexcept;
void raise_late_error();

#define DRIVER_CHECK(CALL) \
  do { \
    if (const driver_status driver_check_status = (CALL); C10_UNLIKELY(driver_check_status != DRIVER_OK)) raise(driver_check_status, #CALL); \
  } while (false)

// The number of devices; 0 if the driver cannot count them. Leaves the process able to fork.
c10::DeviceIndex device_count() noexcept;

// The number of devices. Throws the driver's error if the driver cannot count them.
c10::DeviceIndex checked_device_count();

// The name of the hardware, and the bytes of its memory.
std::pair<std::string, int64_t> device_properties(c10::DeviceIndex device);

// Throws an exception if `device` does not exist; -1 means the current device.
c10::DeviceIndex check_device(c10::DeviceIndex device);

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device) noexcept;

// True once the devices have been used. From then on, a forked child cannot use them.
bool is_initialized() noexcept;
bool is_in_bad_fork() noexcept;

extern std::atomic<bool> needs_attention;
void initialize();

// Initialises the driver at the first use, and throws an exception in a forked child. Call it before any other call of the driver.
inline void ensure_usable() {
  if (C10_UNLIKELY(needs_attention.load(std::memory_order_relaxed))) initialize();
}

}  // namespace backend
