// The driver of the vendor's hardware. The comment above each function says what the function must do, and which tests of
// `accelkit conformance run` it makes pass. A function that is not written yet returns DRIVER_NOT_IMPLEMENTED. driver.h has the rules for
// all functions. build.py says how to choose this file instead of driver_simulated.cpp.
#include <string>

#include "driver.h"

namespace {

thread_local std::string error_text;

driver_status fail(driver_status status, std::string text) {
  error_text = std::move(text);
  return status;
}

driver_status not_implemented(const char* function) {
  return fail(DRIVER_NOT_IMPLEMENTED, std::string(function) + " is not implemented yet in the driver of " BACKEND_NAME);
}

}  // namespace

const char* driver_error_text(void) { return error_text.c_str(); }

// Count the devices without creating a context: the process must still be able to fork afterwards.
// Tests: device/count_is_steady, contract/probe_leaves_fork_usable
driver_status driver_device_count(int*) { return not_implemented(__func__); }

// Open the driver and create a context. Called once in a process.
// Tests: isolation/importing_initializes_no_driver
driver_status driver_initialize() { return not_implemented(__func__); }

// Fill in the name and the memory of a device.
// Tests: device/has_a_name
driver_status driver_device_properties(int, driver_properties*) { return not_implemented(__func__); }

// Wait until all streams of the device are idle.
// Tests: device/synchronize_waits, streams/device_synchronize_covers_all_streams
driver_status driver_device_synchronize(int) { return not_implemented(__func__); }

// Report the free and the total bytes of a device.
// Tests: memory/free_memory_is_reported
driver_status driver_memory_info(int, size_t*, size_t*) { return not_implemented(__func__); }

// Allocate device memory, or return DRIVER_OUT_OF_MEMORY and leave the device usable.
// Tests: memory/*, device/factories_use_the_index
driver_status driver_allocate(int, size_t, void**) { return not_implemented(__func__); }

// Free device memory, after the work that uses it has ended.
// Tests: memory/allocating_is_counted, streams/memory_is_not_reused_too_early
driver_status driver_free(int, void*) { return not_implemented(__func__); }

// Allocate host memory that the device can read and write directly (pinned memory).
// Tests: transfer/is_pinned, capabilities/pinned_memory
driver_status driver_host_allocate(size_t, void**) { return not_implemented(__func__); }

// Free pinned memory, after the copies that use it have ended.
// Tests: transfer/pinned_memory_is_reused_safely
driver_status driver_host_free(void*) { return not_implemented(__func__); }

// Queue a copy from host memory. It may read the host memory until the stream has been synchronised.
// Tests: transfer/round_trip, transfer/pageable_sources_may_change
driver_status driver_copy_to_device(driver_stream, void*, const void*, size_t) { return not_implemented(__func__); }

// Queue a copy to host memory.
// Tests: transfer/reading_back_waits, device/scalars_come_back; operators/* need both
driver_status driver_copy_to_host(driver_stream, void*, const void*, size_t) { return not_implemented(__func__); }

// Queue a copy within a device. The ranges do not overlap.
// Tests: transfer/within_the_device
driver_status driver_copy_on_device(driver_stream, void*, const void*, size_t) { return not_implemented(__func__); }

// Queue a copy to another device. The stream belongs to the device that is read.
// Tests: transfer/between_devices
driver_status driver_copy_to_peer(driver_stream, int, void*, const void*, size_t) { return not_implemented(__func__); }

// Queue the filling of memory with a byte.
// Tests: operators/forward[zero_,*]
driver_status driver_fill(driver_stream, void*, uint8_t, size_t) { return not_implemented(__func__); }

// Queue a kernel. Return DRIVER_NOT_IMPLEMENTED for one that does not exist: kernels.cpp then uses the CPU.
// Tests: operators/forward[mm,float32], operators/forward[add,float32]
driver_status driver_launch(driver_stream, const char*, const driver_argument*, int) { return not_implemented(__func__); }

// Create a queue of work on a device. The backend creates at most 33 for each device, and keeps them until the process ends.
// Tests: streams/*
driver_status driver_stream_create(int, driver_stream*) { return not_implemented(__func__); }

// Wait until the work that was queued on the stream has ended, and report its errors.
// Tests: streams/synchronizing_a_stream; every copy to the host needs it
driver_status driver_stream_synchronize(driver_stream) { return not_implemented(__func__); }

// Report whether all work of the stream has ended. Must not wait.
// Tests: streams/synchronizing_a_stream
driver_status driver_stream_is_done(driver_stream, int*) { return not_implemented(__func__); }

// Queue a wait: later work of the stream starts after the event. Must not wait itself.
// Tests: streams/waiting_streams_see_the_value, streams/waiting_for_another_device
driver_status driver_stream_wait_event(driver_stream, driver_event) { return not_implemented(__func__); }

// Create an event that measures time.
// Tests: streams/events_measure_time
driver_status driver_event_create(int, driver_event*) { return not_implemented(__func__); }

// Destroy an event. Streams may still be waiting for it.
// Tests: streams/handles_are_freed
driver_status driver_event_destroy(driver_event) { return not_implemented(__func__); }

// Queue the event on a stream. A new recording replaces the old one.
// Tests: streams/a_new_recording_replaces_the_old
driver_status driver_event_record(driver_event, driver_stream) { return not_implemented(__func__); }

// Report whether the stream has reached the latest recording; 1 if there is none. Must not wait.
// Tests: streams/events_are_done_after_waiting
driver_status driver_event_is_done(driver_event, int*) { return not_implemented(__func__); }

// Wait until the stream has reached the latest recording.
// Tests: streams/events_are_done_after_waiting
driver_status driver_event_synchronize(driver_event) { return not_implemented(__func__); }

// Measure the time between two events that are done, in milliseconds.
// Tests: streams/events_measure_time
driver_status driver_event_elapsed(driver_event, driver_event, double*) { return not_implemented(__func__); }
