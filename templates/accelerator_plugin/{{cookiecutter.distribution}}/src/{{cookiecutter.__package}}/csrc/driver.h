// The functions that the backend needs from a driver. All other files in this folder call no function of the vendor but these.
//
// Every function returns a status. After a status other than DRIVER_OK, driver_error_text() describes the error for the user.
// Work is queued on streams. The work of a stream runs in the order in which it was queued, before or after the function returns.
// An address in device memory is never dereferenced by the backend, so it may be any number, but address + n must be the n-th byte after it.
// All functions may be called from any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  DRIVER_OK = 0,
  DRIVER_OUT_OF_MEMORY = 1,    // becomes torch.OutOfMemoryError
  DRIVER_DEVICE_LOST = 2,      // becomes torch.AcceleratorError: nothing works until the process ends
  DRIVER_INVALID_ARGUMENT = 3, // becomes RuntimeError, as does every other status
  DRIVER_NOT_IMPLEMENTED = 4,  // becomes NotImplementedError
} driver_status;

typedef struct driver_stream_object* driver_stream;
typedef struct driver_event_object* driver_event;

typedef struct {
  char name[64];
  size_t total_memory;  // bytes
} driver_properties;

// An argument of a kernel: an address in device memory, or a number.
typedef struct {
  enum { DRIVER_ADDRESS, DRIVER_INTEGER, DRIVER_REAL } kind;
  union {
    void* address;
    int64_t integer;
    double real;
  };
} driver_argument;

// -- devices --------------------------------------------------------------------------------------------------------------------------
const char* driver_error_text(void);             // of the last call on this thread that failed
driver_status driver_device_count(int* count);   // called before driver_initialize; must leave the process able to fork
driver_status driver_initialize(void);           // called once, before any function below
driver_status driver_device_properties(int device, driver_properties* properties);
driver_status driver_device_synchronize(int device);  // waits for all work of all streams

// -- memory ---------------------------------------------------------------------------------------------------------------------------
driver_status driver_memory_info(int device, size_t* free, size_t* total);            // bytes
driver_status driver_allocate(int device, size_t bytes, void** address);              // aligned to 64 bytes or more
driver_status driver_free(int device, void* address);                                 // waits for work that uses the memory
driver_status driver_host_allocate(size_t bytes, void** address);                     // host memory from which devices copy asynchronously
driver_status driver_host_free(void* address);                                        // waits for work that uses the memory

// -- work -----------------------------------------------------------------------------------------------------------------------------
driver_status driver_copy_to_device(driver_stream stream, void* to, const void* from_host, size_t bytes);
driver_status driver_copy_to_host(driver_stream stream, void* to_host, const void* from, size_t bytes);
driver_status driver_copy_on_device(driver_stream stream, void* to, const void* from, size_t bytes);
driver_status driver_copy_to_peer(driver_stream stream, int peer, void* to_on_peer, const void* from, size_t bytes);
driver_status driver_fill(driver_stream stream, void* to, uint8_t value, size_t bytes);
driver_status driver_launch(driver_stream stream, const char* kernel, const driver_argument* arguments, int count);  // a kernel of the vendor

// -- streams and events ---------------------------------------------------------------------------------------------------------------
driver_status driver_stream_create(int device, driver_stream* stream);   // the stream is kept until the process ends
driver_status driver_stream_synchronize(driver_stream stream);            // waits for the work that was queued on it
driver_status driver_stream_is_done(driver_stream stream, int* is_done);  // whether all its work has ended
driver_status driver_stream_wait_event(driver_stream stream, driver_event event);
driver_status driver_event_create(int device, driver_event* event);
driver_status driver_event_destroy(driver_event event);
driver_status driver_event_record(driver_event event, driver_stream stream);
driver_status driver_event_is_done(driver_event event, int* is_done);     // 1 if it was never recorded
driver_status driver_event_synchronize(driver_event event);
driver_status driver_event_elapsed(driver_event start, driver_event end, double* milliseconds);

#ifdef __cplusplus
}
#endif
