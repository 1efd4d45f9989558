// The CPU kernels of the TensorFlow operations: they check, lay out pointers, and call the core.
#include <cstring>
#include <utility>
#include <vector>

#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/threadpool.h"

namespace scalecom {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

int32_t TypeOf(DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return SCALECOM_FLOAT16;
    case tensorflow::DT_BFLOAT16:
      return SCALECOM_BFLOAT16;
    case tensorflow::DT_DOUBLE:
      return SCALECOM_FLOAT64;
    default:
      return SCALECOM_FLOAT32;
  }
}

absl::Status ToStatus(int32_t status, const char* function) {
  if (status == SCALECOM_OK) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(function, ": ", scalecom_status_text(status)));
}

// Runs the core's tasks in TensorFlow's pool of this device.
void RunInPool(void* state, int64_t tasks, scalecom_task task, void* context) {
  static_cast<tensorflow::thread::ThreadPool*>(state)->ParallelFor(
      tasks, tensorflow::thread::ThreadPool::SchedulingParams::Fixed(1),
      [task, context](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) task(context, i);
      });
}

scalecom_executor ExecutorOf(OpKernelContext* ctx) {
  return {RunInPool, ctx->device()->tensorflow_cpu_worker_threads()->workers};
}

char* Bytes(const Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

// The layout attributes, and the list of the core's tensors that they describe.
class Plan {
 public:
  explicit Plan(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Ts", &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("chunk_size", &chunk_size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("chunk_keep", &chunk_keep_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tail_keep", &tail_keep_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("offset_bytes", &offset_bytes_));
    int residuals;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &residuals));
    OP_REQUIRES(ctx, residuals == size(),
                absl::InvalidArgumentError(absl::StrCat("expected one residual for each of ",
                                                        size(), " gradients; got ", residuals)));
  }

  int size() const { return static_cast<int>(types_.size()); }
  int64_t kept() const { return kept_; }
  int64_t words() const { return words_; }
  const std::vector<scalecom_tensor>& tensors() const { return tensors_; }
  std::vector<scalecom_tensor>& tensors() { return tensors_; }

  // Lays out gradients and kept elements.
  absl::Status SetGradients(OpKernelContext* ctx) {
    tensors_.assign(size(), scalecom_tensor{});
    first_kept_.assign(size(), 0);
    first_offset_.assign(size(), 0);
    kept_ = words_ = 0;
    for (int i = 0; i < size(); ++i) {
      scalecom_tensor& t = tensors_[i];
      t.elements = ctx->input(i).NumElements();
      t.chunk_size = chunk_size_[i];
      t.chunk_keep = chunk_keep_[i];
      t.tail_keep = tail_keep_[i];
      t.offset_bytes = offset_bytes_[i];
      t.gradient = Bytes(ctx->input(i));
      const int64_t kept = scalecom_tensor_kept(&t);
      if (kept < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "expected a valid layout; got, for tensor ", i, " of ", t.elements,
            " elements, chunk_size ", t.chunk_size, ", chunk_keep ", t.chunk_keep, ", tail_keep ",
            t.tail_keep, ", offset_bytes ", t.offset_bytes));
      }
      first_kept_[i] = kept_;
      kept_ += kept;
    }
    for (int64_t width : {1, 2, 4}) {
      int64_t bytes = 0;
      for (int i = 0; i < size(); ++i) {
        if (tensors_[i].offset_bytes != width) continue;
        first_offset_[i] = 4 * words_ + bytes;
        bytes += scalecom_tensor_kept(&tensors_[i]) * width;
      }
      words_ += (bytes + 3) / 4;
    }
    return absl::OkStatus();
  }

  void SetOffsets(char* words) {
    for (int i = 0; i < size(); ++i) tensors_[i].offsets = words + first_offset_[i];
  }
  void SetValues(char* values, int64_t itemsize) {
    for (int i = 0; i < size(); ++i) tensors_[i].values = values + itemsize * first_kept_[i];
  }
  void SetReduced(char* reduced, int64_t itemsize) {
    for (int i = 0; i < size(); ++i) tensors_[i].reduced = reduced + itemsize * first_kept_[i];
  }

  // The core takes one gradient type at a time: calls `run` with each run of equal types.
  template <typename Run>
  absl::Status ForEachType(const Run& run) const {
    for (int begin = 0, end; begin < size(); begin = end) {
      for (end = begin; end < size() && types_[end] == types_[begin]; ++end) {
      }
      TF_RETURN_IF_ERROR(run(tensors_.data() + begin, end - begin, TypeOf(types_[begin])));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<DataType> types_;
  std::vector<int64_t> chunk_size_, chunk_keep_, tail_keep_, offset_bytes_;
  std::vector<scalecom_tensor> tensors_;
  std::vector<int64_t> first_kept_, first_offset_;
  int64_t kept_ = 0, words_ = 0;
};

// The residuals of a plan, locked for as long as this lives.
class Residuals {
 public:
  absl::Status Lock(OpKernelContext* ctx, Plan* plan, bool to_write) {
    const int count = plan->size();
    vars_.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(
          tensorflow::LookupResource(ctx, HandleFromInput(ctx, count + i), &vars_[i]));
      if (to_write) {
        writing_.emplace_back(*vars_[i]->mu());
      } else {
        reading_.emplace_back(*vars_[i]->mu());
      }
      Tensor* residual = vars_[i]->tensor();
      const int64_t elements = plan->tensors()[i].elements;
      if (residual->dtype() != tensorflow::DT_FLOAT || residual->NumElements() != elements) {
        return absl::InvalidArgumentError(absl::StrCat(
            "expected a float32 residual of ", elements, " elements for tensor ", i, "; got ",
            tensorflow::DataTypeString(residual->dtype()), " of shape ",
            residual->shape().DebugString()));
      }
      if (to_write) TF_RETURN_IF_ERROR(OwnBuffer(ctx, residual));
      plan->tensors()[i].residual = residual->flat<float>().data();
    }
    return absl::OkStatus();
  }

 private:
  // Somebody who has read the variable may still hold its buffer, and must not see it change.
  static absl::Status OwnBuffer(OpKernelContext* ctx, Tensor* residual) {
    if (residual->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(residual->dtype(), residual->shape(), &copy));
    copy.flat<float>() = residual->flat<float>();
    *residual = std::move(copy);
    return absl::OkStatus();
  }

  std::vector<RefCountPtr<Var>> vars_;
  std::vector<tensorflow::mutex_lock> writing_;
  std::vector<tensorflow::tf_shared_lock> reading_;
};

absl::Status CheckSize(const Tensor& tensor, int64_t expected, const char* name) {
  if (tensor.NumElements() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, " elements of ", name,
                                                 "; got shape ", tensor.shape().DebugString()));
}

class SelectOp : public OpKernel {
 public:
  explicit SelectOp(OpKernelConstruction* ctx) : OpKernel(ctx), plan_(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    Plan plan = plan_;
    Residuals residuals;
    OP_REQUIRES_OK(ctx, plan.SetGradients(ctx));
    OP_REQUIRES_OK(ctx, residuals.Lock(ctx, &plan, /*to_write=*/false));
    Tensor* words;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({plan.words()}), &words));
    words->flat<int32_t>().setZero();  // the padding
    plan.SetOffsets(Bytes(*words));
    const scalecom_executor executor = ExecutorOf(ctx);
    uint32_t nonfinite = 0;
    OP_REQUIRES_OK(ctx, plan.ForEachType([&](const scalecom_tensor* t, int64_t count,
                                             int32_t type) {
      return Select(ctx, t, count, type, &nonfinite, &executor);
    }));
  }

 private:
  static absl::Status Select(OpKernelContext* ctx, const scalecom_tensor* tensors, int64_t count,
                             int32_t type, uint32_t* nonfinite,
                             const scalecom_executor* executor) {
    // Selections by chunk go to one call; those of a whole tensor have a kernel of their own,
    // which writes 4-byte indices.
    std::vector<scalecom_tensor> chunked, exact;
    for (int64_t i = 0; i < count; ++i) {
      const scalecom_tensor& t = tensors[i];
      (t.chunk_size == t.elements ? exact : chunked).push_back(t);
    }
    TF_RETURN_IF_ERROR(ToStatus(scalecom_offsets_select_cpu(chunked.data(), chunked.size(), type,
                                                            nonfinite, executor),
                                "scalecom_offsets_select_cpu"));
    for (scalecom_tensor& t : exact) {
      Tensor indices;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT32, TensorShape({t.chunk_keep}),
                                            &indices));
      const auto narrow = [&t](const uint32_t* wide) {
        for (int64_t k = 0; k < t.chunk_keep; ++k) {
          if (t.offset_bytes == 1) static_cast<uint8_t*>(t.offsets)[k] = wide[k];
          if (t.offset_bytes == 2) static_cast<uint16_t*>(t.offsets)[k] = wide[k];
          if (t.offset_bytes == 4) static_cast<uint32_t*>(t.offsets)[k] = wide[k];
        }
      };
      scalecom_tensor wide = t;
      wide.offset_bytes = 4;
      wide.offsets = Bytes(indices);
      const int64_t bytes = scalecom_indices_workspace_cpu(&wide, 1);
      Tensor workspace;
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), &workspace));
      TF_RETURN_IF_ERROR(ToStatus(scalecom_indices_select_cpu(&wide, 1, type, nonfinite,
                                                              Bytes(workspace), bytes, executor),
                                  "scalecom_indices_select_cpu"));
      narrow(static_cast<const uint32_t*>(wide.offsets));
    }
    return absl::OkStatus();
  }

  Plan plan_;
};

class AllFiniteOp : public OpKernel {
 public:
  explicit AllFiniteOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    const scalecom_executor executor = ExecutorOf(ctx);
    uint32_t nonfinite = 0;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      scalecom_tensor t{};
      t.elements = ctx->input(i).NumElements();
      t.chunk_size = t.chunk_keep = t.tail_keep = t.offset_bytes = 1;
      t.gradient = Bytes(ctx->input(i));
      OP_REQUIRES_OK(ctx, ToStatus(scalecom_gradients_check_cpu(&t, 1, TypeOf(ctx->input_dtype(i)),
                                                                &nonfinite, &executor),
                                   "scalecom_gradients_check_cpu"));
    }
    Tensor* finite;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &finite));
    finite->scalar<bool>()() = nonfinite == 0;
  }
};

class GatherOp : public OpKernel {
 public:
  explicit GatherOp(OpKernelConstruction* ctx) : OpKernel(ctx), plan_(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("wire", &wire_));
  }

  void Compute(OpKernelContext* ctx) override {
    Plan plan = plan_;
    Residuals residuals;
    OP_REQUIRES_OK(ctx, plan.SetGradients(ctx));
    OP_REQUIRES_OK(ctx, residuals.Lock(ctx, &plan, /*to_write=*/false));
    const Tensor& words = ctx->input(2 * plan.size());
    OP_REQUIRES_OK(ctx, CheckSize(words, plan.words(), "words"));
    Tensor* values;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({plan.kept()}), &values));
    plan.SetOffsets(Bytes(words));
    plan.SetValues(Bytes(*values), tensorflow::DataTypeSize(wire_));
    const scalecom_executor executor = ExecutorOf(ctx);
    OP_REQUIRES_OK(ctx, plan.ForEachType([&](const scalecom_tensor* t, int64_t count,
                                             int32_t type) {
      return ToStatus(scalecom_values_gather_cpu(t, count, type, TypeOf(wire_), &executor),
                      "scalecom_values_gather_cpu");
    }));
  }

 private:
  Plan plan_;
  DataType wire_;
};

class UpdateOp : public OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx), plan_(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("wire", &wire_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("beta", &beta_));
  }

  void Compute(OpKernelContext* ctx) override {
    Plan plan = plan_;
    const int count = plan.size();
    OP_REQUIRES_OK(ctx, plan.SetGradients(ctx));
    const Tensor& words = ctx->input(2 * count);
    const Tensor& values = ctx->input(2 * count + 1);
    const Tensor& reduced = ctx->input(2 * count + 2);
    OP_REQUIRES_OK(ctx, CheckSize(words, plan.words(), "words"));
    OP_REQUIRES_OK(ctx, CheckSize(values, plan.kept(), "values"));
    OP_REQUIRES_OK(ctx, CheckSize(reduced, plan.kept(), "reduced"));
    OP_REQUIRES_OK(ctx, CheckSize(ctx->input(2 * count + 3), 1, "finite"));
    const bool finite = ctx->input(2 * count + 3).flat<bool>()(0);
    for (int i = 0; i < count; ++i) {
      // The output takes the gradient's own buffer where nobody else needs it.
      Tensor* output;
      OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({i}, i, ctx->input(i).shape(),
                                                                &output));
      plan.tensors()[i].output = Bytes(*output);
      if (!finite) std::memset(Bytes(*output), 0, output->TotalBytes());
    }
    if (!finite) return;
    Residuals residuals;
    OP_REQUIRES_OK(ctx, residuals.Lock(ctx, &plan, /*to_write=*/true));
    const int64_t itemsize = tensorflow::DataTypeSize(wire_);
    plan.SetOffsets(Bytes(words));
    plan.SetValues(Bytes(values), itemsize);
    plan.SetReduced(Bytes(reduced), itemsize);
    const scalecom_executor executor = ExecutorOf(ctx);
    OP_REQUIRES_OK(ctx, plan.ForEachType([&](const scalecom_tensor* t, int64_t n, int32_t type) {
      return ToStatus(scalecom_updates_apply_cpu(t, n, type, TypeOf(wire_), beta_, &executor),
                      "scalecom_updates_apply_cpu");
    }));
  }

 private:
  Plan plan_;
  DataType wire_;
  float beta_;
};

REGISTER_KERNEL_BUILDER(Name("ScalecomSelect").Device(tensorflow::DEVICE_CPU), SelectOp);
REGISTER_KERNEL_BUILDER(Name("ScalecomAllFinite").Device(tensorflow::DEVICE_CPU), AllFiniteOp);
REGISTER_KERNEL_BUILDER(Name("ScalecomGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("ScalecomUpdate").Device(tensorflow::DEVICE_CPU), UpdateOp);

}  // namespace
}  // namespace scalecom
