// Operators that torch calls on devices like this one but never on the CPU, or that have another form on the CPU: fused recurrent
// cells, synchronised batch norm, dropout, the Kaiser window.
// They are composed of other operators. Formulas: torch.nn.LSTMCell, torch.nn.GRUCell; Ioffe and Szegedy 2015 (batch norm); Chan et al. 1979
// (combining the variances of parts).
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

namespace backend {
namespace {

using at::Tensor;

// -- recurrent cells ------------------------------------------------------------------------------------------------------------------

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) { return bias && bias->defined() ? gates + *bias : gates; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto hy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  const auto tanh_cy = cy.tanh();
  auto to_cy = hy * out * (1 - tanh_cy * tanh_cy);
  if (grad_cy && grad_cy->defined()) to_cy = to_cy + *grad_cy;
  const auto grad_gates = at::cat({to_cy * cell * in * (1 - in), to_cy * cx * forget * (1 - forget), to_cy * in * (1 - cell * cell),
                                   hy * tanh_cy * out * (1 - out)},
                                  1);
  return {grad_gates, to_cy * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1), from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const auto fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &from_hidden = parts[4];
  const auto to_update = grad_hy * (hx - fresh) * (1 - update) * update, to_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const auto to_reset = to_fresh * from_hidden * (1 - reset) * reset;
  const auto grad_input = at::cat({to_reset, to_update, to_fresh}, 1), grad_hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(), has_bias ? grad_hidden.sum(0) : Tensor()};
}

// -- synchronised batch norm: the statistics of all processes are combined --------------------------------------------------

// A tensor with one value per channel, reshaped to broadcast over `like` (N, C, ...).
Tensor over(const Tensor& like, const Tensor& channels) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[1] = channels.numel();
  return channels.view(shape);
}

std::vector<int64_t> all_but_channels(const Tensor& tensor) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < tensor.dim(); ++dim) dims.push_back(dim);
  return dims;
}

at::ScalarType accumulating(const Tensor& tensor) { return at::toOpMathType(tensor.scalar_type()); }

// Returns the mean and 1 / sqrt(biased variance + eps) of each channel.
std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const auto wide = input.to(accumulating(input));
  const auto dims = all_but_channels(input);
  return {wide.mean(dims), (wide.var(dims, /*unbiased=*/false) + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(const Tensor& input, const Tensor& means, const Tensor& invstds,
                                                               const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var,
                                                               double momentum, double eps, const Tensor& counts) {
  const auto weights = counts.to(means.scalar_type()).view({-1, 1});
  const auto total = weights.sum();
  const auto mean = (means * weights).sum(0) / total;
  const auto variances = invstds.pow(-2) - eps;
  const auto variance = ((variances + (means - mean).square()) * weights).sum(0) / total;
  if (running_mean && running_mean->defined()) running_mean->lerp_(mean.to(running_mean->scalar_type()), momentum);
  if (running_var && running_var->defined()) {
    running_var->lerp_((variance * total / (total - 1)).to(running_var->scalar_type()), momentum);
  }
  return {mean, (variance + eps).rsqrt()};
}

Tensor batch_norm_elemt(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const Tensor& mean,
                        const Tensor& invstd, double) {
  auto result = (input.to(accumulating(input)) - over(input, mean)) * over(input, invstd);
  if (weight && weight->defined()) result = result * over(input, *weight);
  if (bias && bias->defined()) result = result + over(input, *bias);
  return result.to(input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                                                      const std::optional<Tensor>& weight, bool needs_input, bool needs_weight,
                                                                      bool needs_bias) {
  const auto wide = grad.to(accumulating(grad));
  const auto dims = all_but_channels(grad);
  const auto sum_dy = wide.sum(dims), sum_dy_xmu = (wide * (input.to(wide.scalar_type()) - over(input, mean))).sum(dims);
  const auto dtype = weight && weight->defined() ? weight->scalar_type() : wide.scalar_type();
  return {needs_input ? sum_dy : Tensor(), needs_input ? sum_dy_xmu : Tensor(), needs_weight ? (sum_dy_xmu * invstd).to(dtype) : Tensor(),
          needs_bias ? sum_dy.to(dtype) : Tensor()};
}

Tensor batch_norm_backward_elemt(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                 const std::optional<Tensor>& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu, const Tensor& counts) {
  const auto total = counts.sum().to(mean.scalar_type());
  const auto scale = weight && weight->defined() ? invstd * *weight : invstd;
  const auto centred = input.to(accumulating(input)) - over(input, mean);
  const auto result = (grad - over(input, sum_dy / total) - centred * over(input, invstd * invstd * sum_dy_xmu / total)) * over(input, scale);
  return result.to(input.scalar_type());
}

// -- random numbers and windows ----------------------------------------------------------------------------------------------------------

// The host's kernel would use the host's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0 : 1 / (1 - p)), mask};
}

// torch computes the window with a kernel that it has for its own devices only.
Tensor kaiser_window(int64_t length, bool periodic, double beta, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool>) {
  const auto on_host = at::kaiser_window(length, periodic, beta, dtype, layout, at::Device(at::kCPU), /*pin_memory=*/false);
  return on_host.to(device.value_or(at::Device(at::kPrivateUse1)));
}

Tensor kaiser_window_with_default_beta(int64_t length, bool periodic, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                                       std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return kaiser_window(length, periodic, 12.0, dtype, layout, device, pin_memory);
}

Tensor periodic_kaiser_window(int64_t length, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                              std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return kaiser_window(length, true, 12.0, dtype, layout, device, pin_memory);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  library.impl("batch_norm_stats", TORCH_FN(batch_norm_stats));
  library.impl("batch_norm_gather_stats_with_counts", TORCH_FN(batch_norm_gather_stats_with_counts));
  library.impl("batch_norm_elemt", TORCH_FN(batch_norm_elemt));
  library.impl("batch_norm_backward_reduce", TORCH_FN(batch_norm_backward_reduce));
  library.impl("batch_norm_backward_elemt", TORCH_FN(batch_norm_backward_elemt));
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("kaiser_window", TORCH_FN(periodic_kaiser_window));
  library.impl("kaiser_window.periodic", TORCH_FN(kaiser_window_with_default_beta));
  library.impl("kaiser_window.beta", TORCH_FN(kaiser_window));
}

}  // namespace
}  // namespace backend
