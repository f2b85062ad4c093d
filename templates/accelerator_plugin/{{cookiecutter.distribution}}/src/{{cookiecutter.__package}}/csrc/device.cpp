#include "device.h"

#include <pthread.h>

#include <mutex>
#include <string>
#include <utility>

namespace backend {

std::atomic<bool> needs_attention{true};

namespace {

std::atomic<bool> initialized{false}, forked{false};
thread_local c10::DeviceIndex current = 0;

struct LateError {
  driver_status status = DRIVER_OK;
  const char* call = "";
  std::string text;
};

std::mutex late_error_mutex;

LateError& late_error() {
  static auto* const kept = new LateError;  // never destroyed: the last tensors are freed when the process ends
  return *kept;
}

void in_forked_child() {
  if (initialized) {
    forked = true;
    needs_attention = true;
  }
}

}  // namespace

void raise(driver_status status, const char* call, const std::string& text) {
  const std::string function = std::string(call).substr(0, std::string(call).find('('));
  switch (status) {
    case DRIVER_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, BACKEND_NAME, " out of memory. ", text);
    case DRIVER_DEVICE_LOST:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, status, BACKEND_NAME " error: " + text);
    case DRIVER_NOT_IMPLEMENTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, BACKEND_NAME, " error: ", text, " (", function, ")");
    default:
      TORCH_CHECK(false, BACKEND_NAME, " error: ", text, " (", function, ")");
  }
  std::abort();  // unreachable
}

void raise_late(driver_status status, const char* call) noexcept {
  TORCH_WARN_ONCE(BACKEND_NAME, " error: ", driver_error_text(), " (", call, ")");
  std::lock_guard lock(late_error_mutex);
  if (late_error().status == DRIVER_OK) late_error() = {status, call, driver_error_text()};
}

void raise_late_error() {
  LateError error;
  {
    std::lock_guard lock(late_error_mutex);
    error = std::exchange(late_error(), {});
  }
  if (error.status == DRIVER_NOT_IMPLEMENTED) error.status = DRIVER_INVALID_ARGUMENT;  // programs would think that they cannot synchronise
  if (C10_UNLIKELY(error.status != DRIVER_OK)) raise(error.status, error.call, error.text);
}

// -- devices --------------------------------------------------------------------------------------------------------------------------

namespace {

struct Count {
  int found = 0;
  driver_status status = driver_device_count(&found);
  std::string text = status == DRIVER_OK ? "" : driver_error_text();
};

const Count& count() {
  static const Count counted;
  return counted;
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  return static_cast<c10::DeviceIndex>(count().status == DRIVER_OK ? std::min(count().found, kMostDevices) : 0);
}

c10::DeviceIndex checked_device_count() {
  if (C10_UNLIKELY(count().status != DRIVER_OK)) raise(count().status, "driver_device_count", count().text);
  return device_count();
}

std::pair<std::string, int64_t> device_properties(c10::DeviceIndex device) {
  ensure_usable();
  driver_properties properties;
  DRIVER_CHECK(driver_device_properties(check_device(device), &properties));
  return {properties.name, static_cast<int64_t>(properties.total_memory)};
}

c10::DeviceIndex check_device(c10::DeviceIndex device) {
  if (device == -1) return current;
  const int count = checked_device_count();
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
  TORCH_CHECK(checked_device_count() > 0, "No ", BACKEND_NAME, " devices are available");
  static std::once_flag once;
  std::call_once(once, [] {
    DRIVER_CHECK(driver_initialize());
    pthread_atfork(nullptr, nullptr, &in_forked_child);
  });
  initialized = true;
  needs_attention = false;
}

}  // namespace backend
