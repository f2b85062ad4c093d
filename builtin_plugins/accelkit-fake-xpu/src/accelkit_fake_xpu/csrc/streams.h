// Streams and events. Asynchronous copies run on a thread of their stream. Kernels run on the thread of the caller, after all
// earlier work of their stream.
#pragma once

#include <c10/core/Stream.h>

#include <functional>

namespace backend {

// Returns the current stream of this thread on `device`. 0 is the default stream.
c10::StreamId current_stream(c10::DeviceIndex device) noexcept;
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) noexcept;

// Returns the next stream of a pool of fixed size.
c10::StreamId next_stream(c10::DeviceIndex device);

bool is_idle(c10::DeviceIndex device, c10::StreamId stream);
void enqueue(c10::DeviceIndex device, c10::StreamId stream, std::function<void()> work);

// Blocks the calling thread until all work that was enqueued earlier has run.
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
