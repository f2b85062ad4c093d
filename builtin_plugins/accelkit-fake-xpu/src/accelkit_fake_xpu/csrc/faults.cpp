#include "faults.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "device.h"

namespace backend {
namespace {

std::mutex called_mutex;
std::unordered_set<std::string>& called() {  // the kernels that have been called since the faults were set
  static auto* const names = new std::unordered_set<std::string>;
  return *names;
}

void sleep_as_first_calls_do(const char* name) {
  const int64_t milliseconds = faults().first_call_milliseconds;
  if (milliseconds == 0) return;
  {
    const std::lock_guard<std::mutex> lock(called_mutex);
    if (!called().insert(name).second) return;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

bool is_operator(const char* name, const std::string& wanted) {
  return !wanted.empty() && std::strncmp(name, "aten::", 6) == 0 && wanted == name + 6;
}

}  // namespace

Faults& faults() {
  static auto* const kept = new Faults;
  return *kept;
}

void set_faults(int64_t oom_at, int64_t lost_at, std::string nan_operator, std::string wrong_operator, int64_t copy_milliseconds,
                int64_t first_call_milliseconds, std::string recording) {
  auto& set = faults();
  set.allocations_left = oom_at;
  set.kernels_left = lost_at;
  set.copy_milliseconds = copy_milliseconds;
  set.first_call_milliseconds = first_call_milliseconds;
  {
    const std::lock_guard<std::mutex> lock(called_mutex);
    called().clear();
  }
  set.nan_operator = std::move(nan_operator);
  set.wrong_operator = std::move(wrong_operator);
  set.recording = std::move(recording);
  set.is_active = oom_at > 0 || lost_at > 0 || copy_milliseconds > 0 || first_call_milliseconds > 0 || !set.nan_operator.empty() ||
                  !set.wrong_operator.empty();
}

bool is_this_allocation_to_fail() {
  auto& set = faults();
  return set.is_active && set.allocations_left > 0 && --set.allocations_left == 0;
}

void count_kernel_for_faults(const char* name) {
  auto& set = faults();
  sleep_as_first_calls_do(name);
  if (set.kernels_left > 0 && --set.kernels_left == 0) lose_device("unspecified launch failure (device lost, as requested by FAKE_XPU_FAULT)");
}

void sleep_as_slow_copies_do() {
  const int64_t milliseconds = faults().copy_milliseconds;
  if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

bool is_to_be_nan(const char* name) { return is_operator(name, faults().nan_operator); }

bool is_to_be_wrong(const char* name) { return is_operator(name, faults().wrong_operator); }

bool is_recording_wrong(const char* how) { return faults().recording == how; }

}  // namespace backend
