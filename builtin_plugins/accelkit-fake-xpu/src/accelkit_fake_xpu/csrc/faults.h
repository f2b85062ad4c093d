// Fault injection: out of memory at the n-th allocation, device lost at the n-th kernel, NaN or a wrong number from an operator, slow copies,
// slow first calls, wrong recordings of torch.profiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace backend {

struct Faults {
  std::atomic<bool> is_active{false};  // whether any fault is set; the only load on the step path
  std::atomic<int64_t> allocations_left{0}, kernels_left{0};  // 0 if not set
  std::atomic<int64_t> copy_milliseconds{0}, first_call_milliseconds{0};
  std::string nan_operator, wrong_operator, recording;
};

Faults& faults();

// Sets the faults and restarts the counts. Zeros and empty names mean no fault.
void set_faults(int64_t oom_at, int64_t lost_at, std::string nan_operator, std::string wrong_operator, int64_t copy_milliseconds,
                int64_t first_call_milliseconds, std::string recording);

bool is_this_allocation_to_fail();
void count_kernel_for_faults(const char* name);
void sleep_as_slow_copies_do();

// Returns whether the results of the operator `name` ("aten::add") must be NaN.
bool is_to_be_nan(const char* name);

// Returns whether one number in the results of the operator `name` must be wrong.
bool is_to_be_wrong(const char* name);

// Returns whether torch.profiler must record the device wrongly in this way, one of `_RECORDINGS` in settings.py.
bool is_recording_wrong(const char* how);

}  // namespace backend
