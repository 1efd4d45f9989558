// The kernels of the TensorFlow operations, for any device: they check, lay out pointers, and
// call the core.
//
// A Device is made for one run of a kernel. It has the core's functions on a List, Zero and Copy
// of its memory, and nothing in it waits for the work.
#ifndef SCALECOM_TF_KERNELS_H_
#define SCALECOM_TF_KERNELS_H_

#include <limits>
#include <string>
#include <vector>

#include "core/types.h"
#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/layout.h"
#include "tf/residuals.h"
#include "tf/types.h"

namespace scalecom {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Tensors of one gradient type and one limit of what travels, as the core takes them.
struct List {
  const scalecom_tensor* tensors;
  int64_t count;
  int32_t type;
  float limit;
};

// How values travel.
struct Wire {
  int32_t type;
  std::vector<float> limits;  // of each tensor's values
  int64_t bytes;              // of one value

  absl::Status Read(OpKernelConstruction* ctx, int tensors) {
    DataType wire;
    TF_RETURN_IF_ERROR(ctx->GetAttr("wire", &wire));
    TF_RETURN_IF_ERROR(ctx->GetAttr("limits", &limits));
    TF_RETURN_IF_ERROR(TypeOf(wire, &type));
    bytes = tensorflow::DataTypeSize(wire);
    if (static_cast<int>(limits.size()) != tensors) {
      return absl::InvalidArgumentError(absl::StrCat("expected a limit for each of ", tensors,
                                                     " gradients; got ", limits.size()));
    }
    for (const float limit : limits) {
      if (limit > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("expected limits above 0; got ", limit));
    }
    return absl::OkStatus();
  }
};

inline absl::Status ToStatus(int32_t status, const char* work) {
  if (status == SCALECOM_OK) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "expected the native kernels to ", work, "; got: ", scalecom_status_text(status),
      ". `python -m tf_scalecom.ops` says what they were built for; TF_SCALECOM_BACKEND=xla does "
      "without them."));
}

inline char* Bytes(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

inline absl::Status CheckSize(const Tensor& tensor, int64_t expected, const char* name) {
  if (tensor.NumElements() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, " elements of ", name,
                                                 "; got shape ", tensor.shape().DebugString()));
}

// A kernel with a layout. Compute is the same for all: Run, and report.
template <typename Device>
class LayoutKernel : public OpKernel {
 public:
  explicit LayoutKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, layout_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) final {
    Device device(ctx);
    OP_REQUIRES_OK(ctx, Run(ctx, &device));
  }

 protected:
  virtual absl::Status Run(OpKernelContext* ctx, Device* device) const = 0;

  int size() const { return layout_.size(); }

  absl::Status SetGradients(OpKernelContext* ctx, std::vector<scalecom_tensor>* tensors) const {
    tensors->resize(size());
    for (int i = 0; i < size(); ++i) {
      scalecom_tensor& t = (*tensors)[i];
      TF_RETURN_IF_ERROR(layout_.SetTensor(i, ctx->input(i).NumElements(), &t));
      t.gradient = Bytes(ctx->input(i));
    }
    return absl::OkStatus();
  }

  // The core takes one gradient type and one limit at a time: calls `call` with each run of
  // tensors that have both in common. Without limits there is none.
  template <typename Call>
  absl::Status ForEachRun(const std::vector<scalecom_tensor>& tensors,
                          const std::vector<float>& limits, const Call& call) const {
    const auto limit = [&](int i) {
      return limits.empty() ? std::numeric_limits<float>::infinity() : limits[i];
    };
    for (int begin = 0, end; begin < size(); begin = end) {
      for (end = begin;
           end < size() && layout_.type(end) == layout_.type(begin) && limit(end) == limit(begin);
           ++end) {
      }
      List list{tensors.data() + begin, end - begin, 0, limit(begin)};
      TF_RETURN_IF_ERROR(TypeOf(layout_.type(begin), &list.type));
      TF_RETURN_IF_ERROR(call(list));
    }
    return absl::OkStatus();
  }

 private:
  Layout layout_;
};

inline void SetOffsets(const Packing& packing, char* words, std::vector<scalecom_tensor>* tensors) {
  for (size_t i = 0; i < tensors->size(); ++i) {
    (*tensors)[i].offsets = words + packing.first_offset[i];
  }
}

template <typename Device>
class SelectKernel : public LayoutKernel<Device> {
 public:
  explicit SelectKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("selection", &selections_));
    OP_REQUIRES(
        ctx, static_cast<int>(selections_.size()) == this->size(),
        absl::InvalidArgumentError(absl::StrCat("expected a selection for each of ", this->size(),
                                                " gradients; got ", selections_.size())));
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetGradients(ctx, &tensors));
    Residuals residuals;
    TF_RETURN_IF_ERROR(residuals.Lock(ctx, device, /*to_write=*/false, &tensors));
    const Packing packing(tensors);
    Tensor* words;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({packing.words}), &words));
    TF_RETURN_IF_ERROR(device->Zero(words->data(), words->TotalBytes()));  // the padding
    SetOffsets(packing, Bytes(*words), &tensors);
    Tensor nonfinite;  // found on the way, and not asked for: only the leader selects
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_UINT32, TensorShape({}), &nonfinite));
    TF_RETURN_IF_ERROR(device->Zero(nonfinite.data(), nonfinite.TotalBytes()));
    return this->ForEachRun(tensors, {}, [&](const List& list) {
      const int64_t first = list.tensors - tensors.data();
      for (const Selection& selection : kSelections) {
        std::vector<scalecom_tensor> chosen;
        for (int64_t i = 0; i < list.count; ++i) {
          if (selections_[first + i] == selection.name) chosen.push_back(list.tensors[i]);
        }
        if (chosen.empty()) continue;
        TF_RETURN_IF_ERROR(
            Select(ctx, device, selection,
                   {chosen.data(), static_cast<int64_t>(chosen.size()), list.type, list.limit},
                   static_cast<uint32_t*>(nonfinite.data())));
      }
      return absl::OkStatus();
    });
  }

 private:
  static absl::Status Select(OpKernelContext* ctx, Device* device, const Selection& selection,
                             const List& list, uint32_t* nonfinite) {
    const int64_t bytes = device->Workspace(list, selection.number);
    Tensor workspace;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), &workspace));
    return ToStatus(device->Select(list, selection.number, nonfinite, workspace.data(), bytes),
                    "select");
  }

  std::vector<std::string> selections_;  // of each tensor: a name of the table in scalecom.h
};

template <typename Device>
class AnyNonfiniteKernel : public OpKernel {
 public:
  explicit AnyNonfiniteKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int residuals;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Ts", &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &residuals));
    OP_REQUIRES(
        ctx, residuals == 0 || residuals == size(),
        absl::InvalidArgumentError(absl::StrCat("expected one residual for each of ", size(),
                                                " gradients, or none; got ", residuals)));
    compensated_ = residuals > 0;
  }

  void Compute(OpKernelContext* ctx) override {
    Device device(ctx);
    Tensor* nonfinite;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &nonfinite));
    OP_REQUIRES_OK(ctx, device.Zero(nonfinite->data(), nonfinite->TotalBytes()));
    std::vector<scalecom_tensor> tensors(size());
    for (int i = 0; i < size(); ++i) {
      scalecom_tensor& t = tensors[i];
      t = scalecom_tensor{};
      t.elements = ctx->input(i).NumElements();
      t.chunk_size = t.chunk_keep = t.tail_keep = t.offset_bytes = 1;
      t.gradient = Bytes(ctx->input(i));
    }
    Residuals residuals;
    if (compensated_) {
      OP_REQUIRES_OK(ctx, residuals.Lock(ctx, &device, /*to_write=*/false, &tensors));
    }
    for (int begin = 0, end; begin < size(); begin = end) {
      for (end = begin; end < size() && types_[end] == types_[begin]; ++end) {
      }
      List list{&tensors[begin], end - begin, 0, std::numeric_limits<float>::infinity()};
      OP_REQUIRES_OK(ctx, TypeOf(types_[begin], &list.type));
      OP_REQUIRES_OK(ctx, ToStatus(device.Check(list, static_cast<uint32_t*>(nonfinite->data())),
                                   "check for finite values"));
    }
  }

 private:
  int size() const { return static_cast<int>(types_.size()); }

  std::vector<DataType> types_;
  bool compensated_ = false;
};

template <typename Device>
class GatherKernel : public LayoutKernel<Device> {
 public:
  explicit GatherKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, wire_.Read(ctx, this->size()));
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetGradients(ctx, &tensors));
    Residuals residuals;
    TF_RETURN_IF_ERROR(residuals.Lock(ctx, device, /*to_write=*/false, &tensors));
    const Packing packing(tensors);
    const Tensor& words = ctx->input(2 * this->size());
    const Tensor& nonfinite = ctx->input(2 * this->size() + 1);
    TF_RETURN_IF_ERROR(CheckSize(words, packing.words, "words"));
    TF_RETURN_IF_ERROR(CheckSize(nonfinite, 1, "nonfinite"));
    Tensor* values;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({packing.kept + 1}), &values));
    SetOffsets(packing, Bytes(words), &tensors);
    for (int i = 0; i < this->size(); ++i) {
      tensors[i].values = Bytes(*values) + wire_.bytes * packing.first_kept[i];
    }
    TF_RETURN_IF_ERROR(
        ToStatus(device->WriteFlag(static_cast<const uint32_t*>(nonfinite.data()), wire_.type,
                                   Bytes(*values) + wire_.bytes * packing.kept),
                 "write the finite flag"));
    return this->ForEachRun(tensors, wire_.limits, [&](const List& list) {
      return ToStatus(device->Gather(list, wire_.type), "gather values");
    });
  }

 private:
  Wire wire_;
};

template <typename Device>
class UpdateKernel : public LayoutKernel<Device> {
 public:
  explicit UpdateKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, wire_.Read(ctx, this->size()));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("beta", &beta_));
    OP_REQUIRES(ctx, beta_ > 0 && beta_ <= 1,
                absl::InvalidArgumentError(absl::StrCat("expected beta in (0, 1]; got ", beta_)));
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    const int count = this->size();
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetGradients(ctx, &tensors));
    const Packing packing(tensors);
    const Tensor& words = ctx->input(2 * count);
    const Tensor& reduced = ctx->input(2 * count + 1);
    TF_RETURN_IF_ERROR(CheckSize(words, packing.words, "words"));
    TF_RETURN_IF_ERROR(CheckSize(reduced, packing.kept + 1, "reduced"));
    TF_RETURN_IF_ERROR(CheckSize(ctx->input(2 * count + 2), 1, "finite"));
    // In host memory on every device: whoever skips the step branches on it there anyway.
    const bool finite = ctx->input(2 * count + 2).flat<bool>()(0);
    for (int i = 0; i < count; ++i) {
      // The output takes the gradient's own buffer where nobody else needs it.
      Tensor* output;
      TF_RETURN_IF_ERROR(
          ctx->forward_input_or_allocate_output({i}, i, ctx->input(i).shape(), &output));
      tensors[i].output = Bytes(*output);
      if (!finite) TF_RETURN_IF_ERROR(device->Zero(output->data(), output->TotalBytes()));
    }
    if (!finite) return absl::OkStatus();
    Residuals residuals;
    TF_RETURN_IF_ERROR(residuals.Lock(ctx, device, /*to_write=*/true, &tensors));
    SetOffsets(packing, Bytes(words), &tensors);
    for (int i = 0; i < count; ++i) {
      tensors[i].reduced = Bytes(reduced) + wire_.bytes * packing.first_kept[i];
    }
    return this->ForEachRun(tensors, wire_.limits, [&](const List& list) {
      return ToStatus(device->Apply(list, wire_.type, beta_), "apply the update");
    });
  }

 private:
  Wire wire_;
  float beta_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_KERNELS_H_
