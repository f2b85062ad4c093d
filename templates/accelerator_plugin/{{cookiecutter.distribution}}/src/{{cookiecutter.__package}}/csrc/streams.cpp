#include "streams.h"

#include <array>
#include <atomic>
#include <mutex>

#include "device.h"

namespace backend {
namespace {

constexpr int kPooledStreams = 32;  // the size of torch.cuda's pool

thread_local std::array<c10::StreamId, kMostDevices> current_streams{};

driver_event of(void* event) { return static_cast<driver_event>(event); }

}  // namespace

driver_stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  static std::mutex mutex;
  static auto* const streams = new std::array<std::array<driver_stream, kPooledStreams + 1>, kMostDevices>{};
  TORCH_CHECK(id >= 0 && id <= kPooledStreams, BACKEND_NAME, " has no stream ", id);
  ensure_usable();
  auto& stream = (*streams)[check_device(device)][id];
  std::lock_guard lock(mutex);
  if (stream == nullptr) DRIVER_CHECK(driver_stream_create(device, &stream));
  return stream;
}

driver_stream current_driver_stream(c10::DeviceIndex device) { return stream_of(device, current_streams[device]); }
c10::StreamId current_stream(c10::DeviceIndex device) noexcept { return current_streams[device]; }
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) noexcept { return std::exchange(current_streams[device], stream); }

c10::StreamId next_stream(c10::DeviceIndex device) {
  static std::array<std::atomic<uint32_t>, kMostDevices> given{};
  return given[check_device(device)]++ % kPooledStreams + 1;
}

bool is_idle(c10::DeviceIndex device, c10::StreamId stream) {
  int is_done = 0;
  DRIVER_CHECK(driver_stream_is_done(stream_of(device, stream), &is_done));
  return is_done != 0;
}

void drain(c10::DeviceIndex device, c10::StreamId stream) { DRIVER_CHECK(driver_stream_synchronize(stream_of(device, stream))); }

void drain_device(c10::DeviceIndex device) {
  ensure_usable();
  DRIVER_CHECK(driver_device_synchronize(device));
  raise_late_error();
}

// -- events ---------------------------------------------------------------------------------------------------------------------------

void record_event(void** event, c10::DeviceIndex device, c10::StreamId stream) {
  auto made = of(*event);
  const auto queue = stream_of(device, stream);
  if (made == nullptr) DRIVER_CHECK(driver_event_create(device, &made));
  *event = made;
  DRIVER_CHECK(driver_event_record(made, queue));
}

void wait_event(void* event, c10::DeviceIndex device, c10::StreamId stream) {
  if (event != nullptr) DRIVER_CHECK(driver_stream_wait_event(stream_of(device, stream), of(event)));
}

bool is_event_done(void* event) {
  int is_done = 1;
  if (event != nullptr) DRIVER_CHECK(driver_event_is_done(of(event), &is_done));
  return is_done != 0;
}

void synchronize_event(void* event) {
  if (event != nullptr) DRIVER_CHECK(driver_event_synchronize(of(event)));
}

double elapsed_milliseconds(void* start, void* end) {
  double milliseconds = 0;
  DRIVER_CHECK(driver_event_elapsed(of(start), of(end), &milliseconds));
  return milliseconds;
}

void destroy_event(void* event) noexcept {
  if (event == nullptr) return;
  if (const auto status = driver_event_destroy(of(event))) raise_late(status, "driver_event_destroy");
}

}  // namespace backend
