// The kernels and copies of the device, as torch.profiler records them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>

namespace backend {

enum class ActivityKind { kKernel, kCopy };

// Whether torch.profiler is recording the device. Always false with torch before 2.13, whose profiler cannot record it.
extern std::atomic<bool> is_recording_activities;

// Returns the identifier that torch.profiler gave to the operator that runs in this thread. 0 if there is none.
uint64_t recorded_operator() noexcept;

// Returns the result of recorded_operator(), or 0 while nothing is recorded.
inline uint64_t current_operator() noexcept {
  return is_recording_activities.load(std::memory_order_relaxed) ? recorded_operator() : 0;
}

// Work of a stream, from start() to the destructor. It costs two reads of an atomic variable while nothing is recorded.
class Activity {
 public:
  explicit Activity(ActivityKind kind) noexcept : kind_(kind) {}
  Activity(const Activity&) = delete;
  ~Activity() {
    if (start_ns_ != 0) record();
  }

  // `name` must exist as long as the process; `caller` is the value of current_operator() in the thread that launched the work.
  void start(const char* name, c10::DeviceIndex device, c10::StreamId stream, uint64_t caller);

 private:
  void record() const noexcept;

  ActivityKind kind_;
  c10::DeviceIndex device_ = 0;
  c10::StreamId stream_ = 0;
  const char* name_ = nullptr;
  uint64_t caller_ = 0;
  int64_t start_ns_ = 0;
};

}  // namespace backend
