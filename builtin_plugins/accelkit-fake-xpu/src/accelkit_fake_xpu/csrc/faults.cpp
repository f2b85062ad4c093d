#include "faults.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "device.h"

namespace fake_xpu {

Faults& faults() {
  static auto* const kept = new Faults;
  return *kept;
}

void set_faults(int64_t oom_at, int64_t lost_at, std::string nan_operator, int64_t copy_milliseconds) {
  auto& set = faults();
  set.allocations_left = oom_at;
  set.kernels_left = lost_at;
  set.copy_milliseconds = copy_milliseconds;
  set.nan_operator = std::move(nan_operator);
  set.is_active = oom_at > 0 || lost_at > 0 || copy_milliseconds > 0 || !set.nan_operator.empty();
}

bool is_this_allocation_to_fail() {
  auto& set = faults();
  return set.is_active && set.allocations_left > 0 && --set.allocations_left == 0;
}

void count_kernel_for_faults() {
  auto& set = faults();
  if (set.kernels_left > 0 && --set.kernels_left == 0) lose_device("unspecified launch failure (device lost, as requested by FAKE_XPU_FAULT)");
}

void sleep_as_slow_copies_do() {
  const int64_t milliseconds = faults().copy_milliseconds;
  if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

bool is_to_be_nan(const char* name) {
  const auto& wanted = faults().nan_operator;
  return !wanted.empty() && std::strncmp(name, "aten::", 6) == 0 && wanted == name + 6;
}

}  // namespace fake_xpu
