#include "simulated_kernels.h"

#include <cstring>
#include <map>
#include <string>

namespace simulated {
namespace {

// (out, a, b, alpha, n): out[i] = a[i] + alpha * b[i]
void add_float32(const Argument* given) {
  auto* const out = reinterpret_cast<float*>(given[0].memory);
  const auto *const a = reinterpret_cast<float*>(given[1].memory), *const b = reinterpret_cast<float*>(given[2].memory);
  const auto alpha = static_cast<float>(given[3].real);
  for (int64_t i = 0; i < given[4].integer; ++i) out[i] = a[i] + alpha * b[i];
}

// (out, a, b, m, k, n): out (m x n) = a (m x k) times b (k x n), all contiguous
void matmul_float32(const Argument* given) {
  auto* const out = reinterpret_cast<float*>(given[0].memory);
  const auto *const a = reinterpret_cast<float*>(given[1].memory), *const b = reinterpret_cast<float*>(given[2].memory);
  const int64_t m = given[3].integer, k = given[4].integer, n = given[5].integer;
  std::memset(out, 0, sizeof(float) * m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
}

// (to, from, bytes of an element, dimensions, sizes ..., strides of `to` ..., strides of `from` ...): the strides are in elements
void copy_strided(const Argument* given) {
  const int64_t width = given[2].integer, dims = given[3].integer;
  const auto *const sizes = given + 4, *const to_strides = sizes + dims, *const from_strides = to_strides + dims;
  int64_t total = 1;
  for (int64_t dim = 0; dim < dims; ++dim) total *= sizes[dim].integer;
  for (int64_t i = 0; i < total; ++i) {
    int64_t rest = i, to = 0, from = 0;
    for (int64_t dim = dims - 1; dim >= 0; --dim) {
      const int64_t index = rest % sizes[dim].integer;
      rest /= sizes[dim].integer;
      to += index * to_strides[dim].integer;
      from += index * from_strides[dim].integer;
    }
    std::memcpy(given[0].memory + to * width, given[1].memory + from * width, width);
  }
}

}  // namespace

Kernel find_kernel(const char* name) {
  static const std::map<std::string, Kernel> kernels{
      {"add_float32", &add_float32}, {"matmul_float32", &matmul_float32}, {"copy_strided", &copy_strided}};
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : found->second;
}

}  // namespace simulated
