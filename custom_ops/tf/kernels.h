// The kernels of the TensorFlow operations, for any device: they check, lay out pointers, and
// call the core.
//
// A Device is made for one run of a kernel. It has the core's functions on a List, Zero and Copy
// of its memory, and nothing in it waits for the work. Load makes the core's kernels ready when an
// operation's is made, and Text has the words of a status.
#ifndef SCALECOM_TF_KERNELS_H_
#define SCALECOM_TF_KERNELS_H_

#include <limits>
#include <string>
#include <vector>

#include "core/types.h"
#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_description.pb.h"
#include "tf/layout.h"
#include "tf/types.h"
#include "tf/variables.h"

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

template <typename Device>
absl::Status ToStatus(int32_t status, const char* work) {
  if (status == SCALECOM_OK) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "expected the native kernels to ", work, "; got: ", Device::Text(status),
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
    OP_REQUIRES_OK(ctx, Device::Load(ctx));
    OP_REQUIRES_OK(ctx, layout_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) final {
    Device device(ctx);
    OP_REQUIRES_OK(ctx, Run(ctx, &device));
  }

 protected:
  virtual absl::Status Run(OpKernelContext* ctx, Device* device) const = 0;

  int size() const { return layout_.size(); }

  // Of so many elements as input `first + i` has.
  absl::Status SetTensors(OpKernelContext* ctx, int first,
                          std::vector<scalecom_tensor>* tensors) const {
    tensors->resize(size());
    for (int i = 0; i < size(); ++i) {
      TF_RETURN_IF_ERROR(layout_.SetTensor(i, ctx->input(first + i).NumElements(), &(*tensors)[i]));
    }
    return absl::OkStatus();
  }

 private:
  Layout layout_;
};

// The core takes one gradient type and one limit at a time: calls `call` with each run of tensors
// that have both in common. Without types they are float32, without limits there is none.
template <typename Call>
absl::Status ForEachRun(const std::vector<scalecom_tensor>& tensors,
                        const std::vector<DataType>& types, const std::vector<float>& limits,
                        const Call& call) {
  const int count = static_cast<int>(tensors.size());
  const auto type = [&](int i) { return types.empty() ? tensorflow::DT_FLOAT : types[i]; };
  const auto limit = [&](int i) {
    return limits.empty() ? std::numeric_limits<float>::infinity() : limits[i];
  };
  for (int begin = 0, end; begin < count; begin = end) {
    for (end = begin; end < count && type(end) == type(begin) && limit(end) == limit(begin);
         ++end) {
    }
    List list{tensors.data() + begin, end - begin, 0, limit(begin)};
    TF_RETURN_IF_ERROR(TypeOf(type(begin), &list.type));
    TF_RETURN_IF_ERROR(call(list));
  }
  return absl::OkStatus();
}

inline void SetOffsets(const Packing& packing, char* words, std::vector<scalecom_tensor>* tensors) {
  for (size_t i = 0; i < tensors->size(); ++i) {
    (*tensors)[i].offsets = words + packing.first_offset[i];
  }
}

// The residuals of some tensors, from input `first` on.
inline absl::Status LockResiduals(OpKernelContext* ctx, int first, bool to_write,
                                  const std::vector<scalecom_tensor>& tensors,
                                  Variables* residuals) {
  const int count = static_cast<int>(tensors.size());
  TF_RETURN_IF_ERROR(residuals->Lock(ctx, first, count, to_write));
  for (int i = 0; i < count; ++i) {
    if (residuals->elements(i) == tensors[i].elements) continue;
    return absl::InvalidArgumentError(absl::StrCat("expected a residual of ", tensors[i].elements,
                                                   " elements for tensor ", i, "; got shape ",
                                                   residuals->shape(i).DebugString()));
  }
  return absl::OkStatus();
}

template <typename Device>
class CompensateKernel : public LayoutKernel<Device> {
 public:
  explicit CompensateKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, ReadTypes(ctx, this->size(), &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("selection", &selections_));
    OP_REQUIRES(
        ctx, static_cast<int>(selections_.size()) == this->size(),
        absl::InvalidArgumentError(absl::StrCat("expected a selection for each of ", this->size(),
                                                " tensors; got ", selections_.size())));
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    const int count = this->size();
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetTensors(ctx, 0, &tensors));
    TF_RETURN_IF_ERROR(CheckSize(ctx->input(2 * count), 1, "leads"));
    const bool leads = ctx->input(2 * count).flat<bool>()(0);
    Variables residuals;
    TF_RETURN_IF_ERROR(LockResiduals(ctx, count, /*to_write=*/false, tensors, &residuals));
    for (int i = 0; i < count; ++i) {
      // p takes the gradient's own buffer where nobody else needs it.
      const TensorShape shape = ctx->input(i).shape();
      tensors[i].gradient = Bytes(ctx->input(i));
      Tensor* compensated;
      if (types_[i] == tensorflow::DT_FLOAT) {
        TF_RETURN_IF_ERROR(ctx->forward_input_or_allocate_output({i}, i, shape, &compensated));
      } else {
        TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &compensated));
      }
      tensors[i].residual = residuals.data(i);
      tensors[i].compensated = compensated->flat<float>().data();
    }
    const Packing packing(tensors);
    Tensor* words;
    TF_RETURN_IF_ERROR(ctx->allocate_output(count, TensorShape({packing.words}), &words));
    TF_RETURN_IF_ERROR(device->Zero(words->data(), words->TotalBytes()));  // the padding, or all
    SetOffsets(packing, Bytes(*words), &tensors);
    Tensor* flag;
    TF_RETURN_IF_ERROR(ctx->allocate_output(count + 1, TensorShape({}), &flag));
    TF_RETURN_IF_ERROR(device->Zero(flag->data(), flag->TotalBytes()));
    uint32_t* nonfinite = static_cast<uint32_t*>(flag->data());
    return ForEachRun(tensors, types_, {}, [&](const List& list) {
      if (!leads) return ToStatus<Device>(device->Compensate(list, nonfinite), "compensate");
      return Select(ctx, device, list, list.tensors - tensors.data(), nonfinite);
    });
  }

 private:
  absl::Status Select(OpKernelContext* ctx, Device* device, const List& list, int64_t first,
                      uint32_t* nonfinite) const {
    for (const Selection& selection : kSelections) {
      std::vector<scalecom_tensor> chosen;
      for (int64_t i = 0; i < list.count; ++i) {
        if (selections_[first + i] == selection.name) chosen.push_back(list.tensors[i]);
      }
      if (chosen.empty()) continue;
      const List part{chosen.data(), static_cast<int64_t>(chosen.size()), list.type, list.limit};
      const int64_t bytes = device->Workspace(part, selection.number);
      Tensor workspace;
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), &workspace));
      TF_RETURN_IF_ERROR(ToStatus<Device>(
          device->Select(part, selection.number, nonfinite, workspace.data(), bytes), "select"));
    }
    return absl::OkStatus();
  }

  std::vector<DataType> types_;
  std::vector<std::string> selections_;  // of each tensor: a name of the table in scalecom.h
};

template <typename Device>
class GatherKernel : public LayoutKernel<Device> {
 public:
  explicit GatherKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, wire_.Read(ctx, this->size()));
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    const int count = this->size();
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetTensors(ctx, 0, &tensors));
    const Packing packing(tensors);
    const Tensor& words = ctx->input(count);
    const Tensor& nonfinite = ctx->input(count + 1);
    TF_RETURN_IF_ERROR(CheckSize(words, packing.words, "words"));
    TF_RETURN_IF_ERROR(CheckSize(nonfinite, 1, "nonfinite"));
    Tensor* values;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({packing.kept + 1}), &values));
    SetOffsets(packing, Bytes(words), &tensors);
    for (int i = 0; i < count; ++i) {
      const void* before = ctx->input(i).data();
      const TensorShape shape = ctx->input(i).shape();
      Tensor* unsent;
      TF_RETURN_IF_ERROR(ctx->forward_input_or_allocate_output({i}, 1 + i, shape, &unsent));
      if (unsent->data() != before) {
        TF_RETURN_IF_ERROR(device->Copy(unsent->data(), before, unsent->TotalBytes()));
      }
      tensors[i].compensated = unsent->flat<float>().data();
      tensors[i].values = Bytes(*values) + wire_.bytes * packing.first_kept[i];
    }
    TF_RETURN_IF_ERROR(
        ToStatus<Device>(device->WriteFlag(static_cast<const uint32_t*>(nonfinite.data()),
                                           wire_.type, Bytes(*values) + wire_.bytes * packing.kept),
                         "write the finite flag"));
    return ForEachRun(tensors, {}, wire_.limits, [&](const List& list) {
      return ToStatus<Device>(device->Gather(list, wire_.type), "gather values");
    });
  }

 private:
  Wire wire_;
};

// The buffer of what is unsent becomes the residual's; what the residual had comes out.
template <typename Device>
class FilterKernel : public OpKernel {
 public:
  explicit FilterKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, Device::Load(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("beta", &beta_));
    OP_REQUIRES(ctx, beta_ > 0 && beta_ <= 1,
                absl::InvalidArgumentError(absl::StrCat("expected beta in (0, 1]; got ", beta_)));
  }

  void Compute(OpKernelContext* ctx) override {
    Device device(ctx);
    OP_REQUIRES_OK(ctx, CheckSize(ctx->input(2 * size_), 1, "finite"));
    // In the device's memory: buffers change hands in any case, and where it is false the core puts
    // the residual into the new one.
    const uint8_t* finite = static_cast<const uint8_t*>(ctx->input(2 * size_).data());
    std::vector<scalecom_tensor> tensors(size_);
    for (int i = 0; i < size_; ++i) {
      scalecom_tensor& t = tensors[i];
      t = scalecom_tensor{};
      t.elements = ctx->input(i).NumElements();
      t.chunk_size = t.chunk_keep = t.tail_keep = t.offset_bytes = 1;
    }
    Variables residuals;
    OP_REQUIRES_OK(ctx, LockResiduals(ctx, size_, /*to_write=*/true, tensors, &residuals));
    std::vector<Tensor> unsent(size_);
    for (int i = 0; i < size_; ++i) {
      OP_REQUIRES_OK(ctx, TakeOver(ctx, &device, i, &unsent[i]));
      tensors[i].residual = residuals.data(i);
      tensors[i].compensated = unsent[i].flat<float>().data();
    }
    OP_REQUIRES_OK(ctx, ToStatus<Device>(device.Filter({tensors.data(), size_, SCALECOM_FLOAT32, 0},
                                                       beta_, finite),
                                         "filter residuals"));
    for (int i = 0; i < size_; ++i) ctx->set_output(i, residuals.Replace(i, unsent[i]));
  }

 private:
  // The buffer of input i, or a copy where somebody else needs it or it is part of a larger one,
  // which the residual would keep alive.
  static absl::Status TakeOver(OpKernelContext* ctx, Device* device, int i, Tensor* buffer) {
    const TensorShape shape = ctx->input(i).shape();
    std::unique_ptr<Tensor> own =
        ctx->forward_input(i, OpKernelContext::Params::kNoReservation, tensorflow::DT_FLOAT, shape,
                           ctx->input_memory_type(i), tensorflow::AllocatorAttributes());
    if (own != nullptr && !IsPart(*own)) {
      *buffer = *own;
      return absl::OkStatus();
    }
    const Tensor& unsent = own != nullptr ? *own : ctx->input(i);
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_FLOAT, shape, buffer));
    return device->Copy(buffer->data(), unsent.data(), buffer->TotalBytes());
  }

  static bool IsPart(const Tensor& tensor) {
    tensorflow::TensorDescription description;
    tensor.FillDescription(&description);
    return description.allocation_description().requested_bytes() >
           static_cast<int64_t>(tensor.TotalBytes());
  }

  int size_;
  float beta_;
};

template <typename Device>
class ScatterKernel : public LayoutKernel<Device> {
 public:
  explicit ScatterKernel(OpKernelConstruction* ctx) : LayoutKernel<Device>(ctx) {
    OP_REQUIRES_OK(ctx, ReadTypes(ctx, this->size(), &types_));
    DataType wire;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("wire", &wire));
    OP_REQUIRES_OK(ctx, TypeOf(wire, &wire_));
    wire_bytes_ = tensorflow::DataTypeSize(wire);
  }

 protected:
  absl::Status Run(OpKernelContext* ctx, Device* device) const override {
    std::vector<scalecom_tensor> tensors;
    TF_RETURN_IF_ERROR(this->SetTensors(ctx, 2, &tensors));
    const Packing packing(tensors);
    const Tensor& words = ctx->input(0);
    const Tensor& reduced = ctx->input(1);
    TF_RETURN_IF_ERROR(CheckSize(words, packing.words, "words"));
    TF_RETURN_IF_ERROR(CheckSize(reduced, packing.kept + 1, "reduced"));
    SetOffsets(packing, Bytes(words), &tensors);
    for (int i = 0; i < this->size(); ++i) {
      const TensorShape shape = ctx->input(2 + i).shape();
      Tensor* output;
      if (types_[i] == tensorflow::DT_FLOAT) {
        TF_RETURN_IF_ERROR(ctx->forward_input_or_allocate_output({2 + i}, i, shape, &output));
      } else {
        TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &output));
      }
      tensors[i].output = Bytes(*output);
      tensors[i].reduced = Bytes(reduced) + wire_bytes_ * packing.first_kept[i];
    }
    return ForEachRun(tensors, types_, {}, [&](const List& list) {
      return ToStatus<Device>(device->Scatter(list, wire_), "scatter the sums");
    });
  }

 private:
  std::vector<DataType> types_;
  int32_t wire_;
  int64_t wire_bytes_;
};

template <typename Device>
class DescendKernel : public OpKernel {
 public:
  explicit DescendKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, Device::Load(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &size_));
  }

  void Compute(OpKernelContext* ctx) override {
    Device device(ctx);
    const Tensor& learning_rate = ctx->input(3 * size_);
    OP_REQUIRES_OK(ctx, CheckSize(learning_rate, 1, "learning_rate"));
    Variables variables;
    OP_REQUIRES_OK(ctx, variables.Lock(ctx, 0, size_, /*to_write=*/true));
    std::vector<scalecom_slices> slices(size_);
    for (int i = 0; i < size_; ++i) {
      const Tensor& indices = ctx->input(size_ + i);
      const Tensor& values = ctx->input(2 * size_ + i);
      OP_REQUIRES_OK(ctx, CheckSize(values, indices.NumElements(), "values"));
      slices[i].elements = variables.elements(i);
      slices[i].size = indices.NumElements();
      OP_REQUIRES_OK(ctx, variables.Own(ctx, &device, i, &slices[i].variable));
      slices[i].indices = indices.flat<int64_t>().data();
      slices[i].values = values.flat<float>().data();
    }
    OP_REQUIRES_OK(ctx, ToStatus<Device>(device.Descend(slices, learning_rate.flat<float>().data()),
                                         "update the variables"));
  }

 private:
  int size_;
};

template <typename Device>
class SubtractKernel : public OpKernel {
 public:
  explicit SubtractKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, Device::Load(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &size_));
  }

  void Compute(OpKernelContext* ctx) override {
    Device device(ctx);
    const Tensor& factor = ctx->input(3 * size_);
    OP_REQUIRES_OK(ctx, CheckSize(factor, 1, "factor"));
    for (int i = 0; i < size_; ++i) {
      const Tensor& indices = ctx->input(size_ + i);
      const Tensor& values = ctx->input(2 * size_ + i);
      OP_REQUIRES(ctx, indices.dims() == 2 && indices.shape() == values.shape(),
                  absl::InvalidArgumentError(absl::StrCat(
                      "expected indices and values of one shape [rows, size]; got ",
                      indices.shape().DebugString(), ", ", values.shape().DebugString())));
      const void* before = ctx->input(i).data();
      Tensor* result;
      OP_REQUIRES_OK(ctx,
                     ctx->forward_input_or_allocate_output({i}, i, ctx->input(i).shape(), &result));
      if (result->data() != before) {
        OP_REQUIRES_OK(ctx, device.Copy(result->data(), before, result->TotalBytes()));
      }
      // Row after row: an index may be in several.
      scalecom_slices slices{result->NumElements(), indices.dim_size(1),
                             result->flat<float>().data(), indices.flat<int64_t>().data(),
                             values.flat<float>().data()};
      for (int64_t row = 0; row < indices.dim_size(0); ++row) {
        OP_REQUIRES_OK(ctx, ToStatus<Device>(device.Descend({slices}, factor.flat<float>().data()),
                                             "subtract"));
        slices.indices += slices.size;
        slices.values += slices.size;
      }
    }
  }

 private:
  int size_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_KERNELS_H_
