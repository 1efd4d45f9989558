// The variables of an operation, float32, locked while it runs: residuals, or what is trained.
#ifndef SCALECOM_TF_VARIABLES_H_
#define SCALECOM_TF_VARIABLES_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace scalecom {

class Variables {
 public:
  // Locks the variables of inputs [first, first + count) for as long as this lives. On a GPU that
  // covers the launch; the stream keeps later work in order.
  absl::Status Lock(tensorflow::OpKernelContext* ctx, int first, int count, bool to_write) {
    vars_.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(
          tensorflow::LookupResource(ctx, HandleFromInput(ctx, first + i), &vars_[i]));
    }
    TF_RETURN_IF_ERROR(LockAll(to_write));
    for (const auto& var : vars_) {
      if (var->tensor()->dtype() == tensorflow::DT_FLOAT) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("expected float32 variables; got one of ",
                       tensorflow::DataTypeString(var->tensor()->dtype())));
    }
    return absl::OkStatus();
  }

  const tensorflow::TensorShape& shape(int i) const { return vars_[i]->tensor()->shape(); }
  int64_t elements(int i) const { return vars_[i]->tensor()->NumElements(); }
  const float* data(int i) const { return vars_[i]->tensor()->flat<float>().data(); }

  // Gives variable i another buffer, of as many elements; returns the one it had, which somebody
  // who has read the variable may still hold.
  tensorflow::Tensor Replace(int i, const tensorflow::Tensor& value) {
    tensorflow::Tensor* own = vars_[i]->tensor();
    tensorflow::Tensor before = std::move(*own);
    *own = tensorflow::Tensor();
    CHECK(own->CopyFrom(value, before.shape()));  // shares the buffer
    return before;
  }

  // For a change in place: a buffer that somebody else holds is copied first, and must not change.
  template <typename Device>
  absl::Status Own(tensorflow::OpKernelContext* ctx, Device* device, int i, float** data) {
    tensorflow::Tensor* own = vars_[i]->tensor();
    if (!own->RefCountIsOne()) {
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(own->dtype(), own->shape(), &copy));
      TF_RETURN_IF_ERROR(device->Copy(copy.data(), own->data(), own->TotalBytes()));
      *own = std::move(copy);
    }
    *data = own->flat<float>().data();
    return absl::OkStatus();
  }

 private:
  // In one order for all operations, lest two that share variables wait for each other.
  absl::Status LockAll(bool to_write) {
    std::vector<tensorflow::Var*> order;
    for (const auto& var : vars_) order.push_back(var.get());
    std::sort(order.begin(), order.end());
    if (std::adjacent_find(order.begin(), order.end()) != order.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ", order.size(), " different variables; got one of them more than once"));
    }
    for (tensorflow::Var* var : order) {
      if (to_write) {
        writing_.emplace_back(*var->mu());
      } else {
        reading_.emplace_back(*var->mu());
      }
    }
    return absl::OkStatus();
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::mutex_lock> writing_;
  std::vector<tensorflow::tf_shared_lock> reading_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_VARIABLES_H_
