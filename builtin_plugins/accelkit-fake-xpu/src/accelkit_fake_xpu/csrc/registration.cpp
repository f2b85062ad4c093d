// The functions of the device that only the fake XPU has: torch.ops.fake_xpu.
#include <torch/library.h>

#include "device.h"
#include "faults.h"
#include "kernel.h"
#include "memory_history.h"

namespace backend {
namespace {

TORCH_LIBRARY_FRAGMENT(fake_xpu, library) {
  library.def("configure(int[] memory_limits, bool is_protected) -> ()",
              [](std::vector<int64_t> memory_limits, bool is_protected) { configure(memory_limits, is_protected); });
  library.def("kernel_count(int device) -> int", [](int64_t device) { return kernel_count(static_cast<c10::DeviceIndex>(device)); });
  library.def("reset_kernel_counts() -> ()", &reset_kernel_counts);
  library.def("set_faults(int oom_at, int lost_at, str nan_operator, str wrong_operator, int copy_milliseconds, int first_call_milliseconds, str "
              "recording) -> ()",
              &set_faults);
  library.def("record_memory_history(str enabled, str context, int max_entries, bool clear_history, str[] skip_actions) -> ()",
              [](const std::string& enabled, const std::string& context, int64_t max_entries, bool clear_history, std::vector<std::string> skip_actions) {
                record_memory_history(enabled, context, max_entries, clear_history, skip_actions);
              });
  library.def("memory_history() -> (str[], int[][], int[][], int[][], str[], str[], int[])", &memory_history);
}

}  // namespace
}  // namespace backend
