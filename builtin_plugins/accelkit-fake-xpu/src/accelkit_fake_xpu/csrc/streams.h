// Streams and events. Copies that may run later do so on a thread of their stream; kernels run on the caller's thread,
// after everything that their stream holds.
#pragma once

#include <c10/core/Stream.h>

#include <functional>

namespace fake_xpu {

// The current stream of this thread on `device`: 0 is the default one.
c10::StreamId current_stream(c10::DeviceIndex device) noexcept;
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) noexcept;

// One of a fixed number of streams, in turn.
c10::StreamId next_stream(c10::DeviceIndex device);

bool is_idle(c10::DeviceIndex device, c10::StreamId stream);
void enqueue(c10::DeviceIndex device, c10::StreamId stream, std::function<void()> work);

// Waits on the calling thread until everything that was enqueued before has run.
void drain(c10::DeviceIndex device, c10::StreamId stream);
void drain_device(c10::DeviceIndex device);

// `event` is null for one that was never recorded.
void record_event(void** event, c10::DeviceIndex device, c10::StreamId stream);
void wait_event(void* event, c10::DeviceIndex device, c10::StreamId stream);
bool is_event_done(void* event);
void synchronize_event(void* event);
double elapsed_milliseconds(void* start, void* end);  // both are done: torch has checked
void destroy_event(void* event) noexcept;

}  // namespace fake_xpu
