// fxccl: a c10d backend with collectives on device tensors. It passes the host views of the tensors to gloo, so that contiguous tensors are not
// copied. Its work completes on the current stream of the device, as NCCL's does.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>

#include "kernel.h"

namespace backend {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// One collective: the device tensors that it writes, and the work that remains when gloo has finished.
class FxcclWork final : public c10d::Work {
 public:
  FxcclWork(int rank, c10d::OpType type, const WorkPtr& inner, Tensors outputs, const std::function<void()>& finish)
      : c10d::Work(rank, type), inner_(inner), outputs_(std::move(outputs)) {
    std::vector<c10::Device> devices;
    for (const auto& output : outputs_) {
      if (output.is_privateuseone() && std::find(devices.begin(), devices.end(), output.device()) == devices.end()) devices.push_back(output.device());
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
    auto complete = [future = future_, outputs = outputs_, finish](const std::function<void()>& check) {
      try {
        check();
        if (finish) {
          c10::InferenceMode guard;  // tensors created in inference mode can be written only in this mode; other tensors can be written in any mode
          finish();
        }
        future->markCompleted(c10::IValue(outputs));
      } catch (...) {
        future->setError(std::current_exception());
      }
    };
    if (has_future(type)) {
      inner->getFuture()->addCallback([complete](c10::ivalue::Future& done) {
        complete([&] {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        });
      });
    } else {
      complete([&] { inner->wait(); });
    }
  }

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return future_->hasError() ? future_->exception_ptr() : nullptr; }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return outputs_; }
  void synchronize() override { future_->waitAndThrow(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout) inner_->wait(timeout);  // gloo raises an error when the timeout expires
    future_->waitAndThrow();
    return true;
  }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  // gloo implements these as an all-reduce, followed by a copy in the thread that waits.
  static bool has_future(c10d::OpType type) { return type != c10d::OpType::REDUCE_SCATTER && type != c10d::OpType::_REDUCE_SCATTER_BASE; }

  WorkPtr inner_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Waits until the stream has finished earlier work, so that gloo's threads read its results.
at::Tensor ready(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_privateuseone()) drain(tensor.device().index(), current_stream(tensor.device().index()));
  return host_view(tensor);
}
Tensors ready(const Tensors& tensors) {
  Tensors views;
  for (const auto& tensor : tensors) views.push_back(ready(tensor));
  return views;
}
std::vector<Tensors> ready(const std::vector<Tensors>& lists) {
  std::vector<Tensors> views;
  for (const auto& list : lists) views.push_back(ready(list));
  return views;
}
// gloo's own work object is returned for a receive, so nothing can be copied afterwards.
Tensors filled_in_place(const Tensors& tensors) {
  for (const auto& tensor : tensors) TORCH_CHECK(tensor.is_contiguous(), "fxccl: Tensors must be contiguous");
  return ready(tensors);
}
// A view with one row: tensors are gathered into it, or scattered from it, by the number of values, regardless of the shape.
at::Tensor ready_row(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "fxccl: Tensors must be contiguous");
  return ready(tensor).view(-1);
}
Tensors ready_rows(const Tensors& tensors) {
  Tensors rows;
  for (const auto& tensor : tensors) rows.push_back(ready_row(tensor));
  return rows;
}
// gloo ignores the strides of a tensor, so it receives contiguous copies of tensors that are not contiguous.
Tensors contiguous(const Tensors& views) {
  Tensors packed;
  for (const auto& view : views) packed.push_back(view.contiguous());
  return packed;
}
std::vector<Tensors> contiguous(const std::vector<Tensors>& lists) {
  std::vector<Tensors> packed;
  for (const auto& list : lists) packed.push_back(contiguous(list));
  return packed;
}
// Returns the work that remains when gloo has filled `packed`: `finish` on these tensors, then copies back to the views that are not contiguous.
std::function<void()> unpacking(const Tensors& views, const Tensors& packed, const std::function<void()>& finish = nullptr) {
  Tensors to, from;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].is_same(packed[i])) continue;
    to.push_back(views[i]);
    from.push_back(packed[i]);
  }
  if (to.empty()) return finish;
  return [to, from, finish] {
    if (finish) finish();
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  };
}
Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

class Fxccl final : public c10d::Backend {
 public:
  explicit Fxccl(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "fxccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override { gloo_->monitoredBarrier(options, wait_all); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto views = ready(tensors), packed = contiguous(views);
    return work(c10d::OpType::BROADCAST, gloo_->broadcast(packed, options), tensors, unpacking(views, packed));
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto views = ready(tensors), packed = contiguous(views);
    const auto [summing, finish] = averaging(options, packed);
    return work(c10d::OpType::ALLREDUCE, gloo_->allreduce(packed, summing), tensors, unpacking(views, packed, finish));
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto views = ready(tensors), packed = contiguous(views);
    const auto [summing, finish] = averaging(options, packed);
    return work(c10d::OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(packed, summing), tensors, unpacking(views, packed, finish));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto views = ready(tensors), packed = contiguous(views);
    const bool is_root = options.rootRank == getRank();
    const auto [summing, finish] = averaging(options, is_root ? packed : Tensors{});
    return work(c10d::OpType::REDUCE, gloo_->reduce(packed, summing), tensors, unpacking(views, packed, finish));
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = ready(outputs), packed = contiguous(to);
    auto from = contiguous(ready(inputs));
    return work(c10d::OpType::ALLGATHER, gloo_->allgather(packed, from, options), flat(outputs), unpacking(flat(to), flat(packed)));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto to = ready_row(output), from = ready_row(input);
    return work(c10d::OpType::_ALLGATHER_BASE, gloo_->_allgather_base(to, from, options), {output});
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = ready(outputs), packed = contiguous(to);
    auto from = contiguous(ready(inputs));
    return work(c10d::OpType::ALLGATHER_COALESCED, gloo_->allgather_coalesced(packed, from, options), flat(outputs), unpacking(flat(to), flat(packed)));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = ready_rows(outputs), from = ready_rows(inputs);
    return work(c10d::OpType::_ALLGATHER_BASE, gloo_->allgather_into_tensor_coalesced(to, from, options), outputs);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto to = ready(outputs), packed = contiguous(to);
    auto from = contiguous(ready(inputs));
    return work(c10d::OpType::GATHER, gloo_->gather(packed, from, options), flat(outputs), unpacking(flat(to), flat(packed)));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto to = ready(outputs), packed = contiguous(to);
    auto from = contiguous(ready(inputs));
    return work(c10d::OpType::SCATTER, gloo_->scatter(packed, from, options), outputs, unpacking(to, packed));
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = ready(outputs), packed = contiguous(to);
    auto from = contiguous(ready(inputs));
    const auto [summing, finish] = averaging(options, packed);
    return work(c10d::OpType::REDUCE_SCATTER, gloo_->reduce_scatter(packed, from, summing), outputs, unpacking(to, packed, finish));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto to = ready_row(output), from = ready_row(input);
    const auto [summing, finish] = averaging(options, {to});
    return work(c10d::OpType::_REDUCE_SCATTER_BASE, gloo_->_reduce_scatter_base(to, from, summing), {output}, finish);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = ready_rows(outputs), from = ready_rows(inputs);
    const auto [summing, finish] = averaging(options, to);
    return work(c10d::OpType::_REDUCE_SCATTER_BASE, gloo_->reduce_scatter_tensor_coalesced(to, from, summing), outputs, finish);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override {
    auto to = ready(output), packed = to.contiguous(), from = ready(input).contiguous();
    return work(c10d::OpType::ALLTOALL_BASE, gloo_->alltoall_base(packed, from, output_sizes, input_sizes, options), {output}, unpacking({to}, {packed}));
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    // gloo supports this only for a single tensor, so the lists are concatenated, and split again afterwards.
    auto to = ready(outputs), from = ready(inputs);
    Tensors flat_inputs;
    std::vector<int64_t> output_sizes, input_sizes;
    int64_t total = 0;
    for (const auto& tensor : from) {
      flat_inputs.push_back(tensor.reshape(-1));
      input_sizes.push_back(tensor.numel());
    }
    for (const auto& tensor : to) {
      output_sizes.push_back(tensor.numel());
      total += tensor.numel();
    }
    auto joined = at::cat(flat_inputs), received = at::empty({total}, joined.options());
    auto take_apart = [to, received, output_sizes] {
      const auto parts = received.split_with_sizes(output_sizes);
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(parts[i].view(to[i].sizes()));
    };
    return work(c10d::OpType::ALLTOALL, gloo_->alltoall_base(received, joined, output_sizes, input_sizes, options), outputs, take_apart);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto packed = contiguous(ready(tensors));
    return gloo_->send(packed, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto views = filled_in_place(tensors);
    return gloo_->recv(views, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    auto views = filled_in_place(tensors);
    return gloo_->recvAnysource(views, tag);
  }

 private:
  WorkPtr work(c10d::OpType type, const WorkPtr& inner, const Tensors& outputs, const std::function<void()>& finish = nullptr) {
    return c10::make_intrusive<FxcclWork>(getRank(), type, inner, outputs, finish);
  }

  // gloo does not support averages, so sum and then divide.
  template <class Options>
  std::pair<Options, std::function<void()>> averaging(const Options& options, const Tensors& results) {
    if (options.reduceOp != c10d::ReduceOp::AVG) return {options, nullptr};
    Options summing = options;
    summing.reduceOp = c10d::ReduceOp::SUM;
    return {summing, [results, size = getSize()] {
              for (const auto& result : results) {
                if (result.is_floating_point() || result.is_complex()) {
                  result.div_(size);
                } else {
                  result.div_(size, "trunc");
                }
              }
            }};
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

// Python creates gloo and adds it to a group; this function replaces it with fxccl.
void wrap_gloo(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  group->setBackend(kDeviceType, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Fxccl>(group->getBackend(kDeviceType)));
}

TORCH_LIBRARY_FRAGMENT(fake_xpu, library) {
  library.def("wrap_gloo(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", &wrap_gloo);
}

}  // namespace
}  // namespace backend
