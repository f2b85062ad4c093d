// Copies between host and device, and between devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace backend {

// Returns a CPU tensor with the values, shape and strides of a device tensor. Waits for the copy.
at::Tensor copy_to_host(const at::Tensor& tensor);

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);

}  // namespace backend
