#include "device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <mutex>

namespace backend {

std::atomic<bool> needs_attention{true};

namespace {

std::vector<int64_t>& limits() {
  static auto* const kept = new std::vector<int64_t>;
  return *kept;
}

std::atomic<int> count{0};
std::atomic<bool> initialized{false}, forked{false}, lost{false};
bool is_protecting = false;
thread_local c10::DeviceIndex current = 0;
std::string& loss() {
  static auto* const kept = new std::string;
  return *kept;
}
std::mutex& loss_mutex() {
  static auto* const kept = new std::mutex;
  return *kept;
}

constexpr int kLaunchFailure = 719;  // the value of cudaErrorLaunchFailure

void in_forked_child() {
  if (initialized) {
    forked = true;
    needs_attention = true;
  }
}

}  // namespace

void configure(const std::vector<int64_t>& memory_limits, bool is_protected_) {
  TORCH_CHECK(!initialized, "fake_xpu is already in use, so its devices cannot be configured again");
  TORCH_CHECK(memory_limits.size() <= kMostDevices, "fake_xpu has at most ", kMostDevices, " devices");
  limits() = memory_limits;
  is_protecting = is_protected_;
  count = static_cast<int>(memory_limits.size());
}

c10::DeviceIndex device_count() noexcept { return static_cast<c10::DeviceIndex>(count.load()); }
bool is_protected() noexcept { return is_protecting; }
int64_t memory_limit(c10::DeviceIndex device) { return limits().at(device); }
c10::DeviceIndex current_device() noexcept { return current; }
void set_current_device(c10::DeviceIndex device) noexcept { current = device; }
bool is_initialized() noexcept { return initialized; }
bool is_in_bad_fork() noexcept { return forked; }

std::pair<std::string, int64_t> device_properties(c10::DeviceIndex device) { return {"fake XPU", memory_limit(check_device(device))}; }

c10::DeviceIndex check_device(c10::DeviceIndex device) {
  if (device == -1) return current;
  const int there = count;
  TORCH_CHECK(device >= 0 && device < there, "fake_xpu error: invalid device ordinal: fake_xpu:", static_cast<int>(device), " does not exist; ",
              there == 0 ? std::string("no device is visible") : "the devices are fake_xpu:0 to fake_xpu:" + std::to_string(there - 1),
              " (FAKE_XPU_DEVICES, FAKE_XPU_VISIBLE_DEVICES)");
  return device;
}

void attend() {
  TORCH_CHECK(!forked,
              "Cannot re-initialize fake_xpu in forked subprocess. To use fake_xpu with multiprocessing, you must use the 'spawn' start method");
  if (lost) {
    std::lock_guard lock(loss_mutex());
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kLaunchFailure, "fake_xpu error: " + loss());
  }
  TORCH_CHECK(count > 0, "No fake_xpu devices are available (FAKE_XPU_DEVICES, FAKE_XPU_VISIBLE_DEVICES)");
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, &in_forked_child); });
  initialized = true;
  needs_attention = false;
}

void lose_device(const std::string& reason) {
  {
    std::lock_guard lock(loss_mutex());
    loss() = reason;
  }
  lost = true;
  needs_attention = true;
  attend();
  std::abort();  // attend() has thrown an exception
}

}  // namespace backend
