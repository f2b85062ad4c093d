// The current stream of each thread, and streams and events by torch's names for them. Stream 0 of a device is its default stream, and the
// others come from a pool.
#pragma once

#include <c10/core/Stream.h>

#include "driver.h"

namespace backend {

driver_stream stream_of(c10::DeviceIndex device, c10::StreamId id);
driver_stream current_driver_stream(c10::DeviceIndex device);

c10::StreamId current_stream(c10::DeviceIndex device) noexcept;
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) noexcept;

// Returns the next stream of the pool.
c10::StreamId next_stream(c10::DeviceIndex device);

bool is_idle(c10::DeviceIndex device, c10::StreamId stream);

// Block the calling thread until all work that was queued earlier has ended.
void drain(c10::DeviceIndex device, c10::StreamId stream);
void drain_device(c10::DeviceIndex device);

// `event` is null if it was never recorded.
void record_event(void** event, c10::DeviceIndex device, c10::StreamId stream);
void wait_event(void* event, c10::DeviceIndex device, c10::StreamId stream);
bool is_event_done(void* event);
void synchronize_event(void* event);
double elapsed_milliseconds(void* start, void* end);  // torch has checked that both are complete
void destroy_event(void* event) noexcept;

}  // namespace backend
