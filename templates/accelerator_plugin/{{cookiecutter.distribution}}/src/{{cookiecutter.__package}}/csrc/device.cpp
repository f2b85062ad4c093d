#include "device.h"

#include <pthread.h>

#include <mutex>
#include <string>

namespace backend {

std::atomic<bool> needs_attention{true};

namespace {

std::atomic<bool> initialized{false}, forked{false};
thread_local c10::DeviceIndex current = 0;

void in_forked_child() {
  if (initialized) {
    forked = true;
    needs_attention = true;
  }
}

}  // namespace

void raise(driver_status status, const char* call) {
  const std::string text = std::string(BACKEND_NAME) + " error: " + driver_error_text();
  const std::string function = std::string(call).substr(0, std::string(call).find('('));
  switch (status) {
    case DRIVER_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, BACKEND_NAME, " out of memory. ", driver_error_text());
    case DRIVER_DEVICE_LOST:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, status, text);
    case DRIVER_NOT_IMPLEMENTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text, " (", function, ")");
    default:
      TORCH_CHECK(false, text, " (", function, ")");
  }
  std::abort();  // unreachable
}

c10::DeviceIndex device_count() noexcept {
  static const int count = [] {
    int found = 0;
    if (driver_device_count(&found) == DRIVER_OK) return std::min(found, kMostDevices);
    TORCH_WARN("the number of devices of " BACKEND_NAME " is not known: ", driver_error_text());
    return 0;
  }();
  return static_cast<c10::DeviceIndex>(count);
}

std::string device_name(c10::DeviceIndex device) {
  ensure_usable();
  driver_properties properties;
  DRIVER_CHECK(driver_device_properties(check_device(device), &properties));
  return properties.name;
}

c10::DeviceIndex check_device(c10::DeviceIndex device) {
  if (device == -1) return current;
  const int count = device_count();
  TORCH_CHECK(device >= 0 && device < count, BACKEND_NAME, " error: invalid device ordinal: ", BACKEND_NAME, ":", static_cast<int>(device),
              " does not exist; the number of devices is ", count);
  return device;
}

c10::DeviceIndex current_device() noexcept { return current; }
void set_current_device(c10::DeviceIndex device) noexcept { current = device; }
bool is_initialized() noexcept { return initialized; }
bool is_in_bad_fork() noexcept { return forked; }

void initialize() {
  TORCH_CHECK(!forked, "Cannot re-initialize ", BACKEND_NAME, " in forked subprocess. To use ", BACKEND_NAME,
              " with multiprocessing, you must use the 'spawn' start method");
  TORCH_CHECK(device_count() > 0, "No ", BACKEND_NAME, " devices are available");
  static std::once_flag once;
  std::call_once(once, [] {
    DRIVER_CHECK(driver_initialize());
    pthread_atfork(nullptr, nullptr, &in_forked_child);
  });
  initialized = true;
  needs_attention = false;
}

}  // namespace backend
