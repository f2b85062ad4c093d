// Random numbers: a generator for each device, with its own state.
#pragma once

#include <ATen/core/Generator.h>

namespace fake_xpu {

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// The host generator that the next kernel draws from. One that is not a fake_xpu generator is an error.
at::Generator host_generator(const at::Generator& generator);

}  // namespace fake_xpu
