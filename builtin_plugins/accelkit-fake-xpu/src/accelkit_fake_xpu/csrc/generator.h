// Random numbers: each device has a generator with its own state.
#pragma once

#include <ATen/core/Generator.h>

namespace backend {

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// Returns the host generator for the next kernel. Throws an exception if `generator` is not a generator of this device.
at::Generator host_generator(const at::Generator& generator);

}  // namespace backend
