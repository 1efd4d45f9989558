// The residuals of an operation: float32 variables, locked while it runs.
#ifndef SCALECOM_TF_RESIDUALS_H_
#define SCALECOM_TF_RESIDUALS_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace scalecom {

class Residuals {
 public:
  // Locks the variables of inputs [tensors.size(), 2 * tensors.size()) for as long as this lives,
  // and points the tensors to them. To write is to own: a buffer that somebody else holds is
  // copied first. On a GPU the lock covers the launch; the stream keeps later work in order.
  template <typename Device>
  absl::Status Lock(tensorflow::OpKernelContext* ctx, Device* device, bool to_write,
                    std::vector<scalecom_tensor>* tensors) {
    const int count = static_cast<int>(tensors->size());
    vars_.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(
          tensorflow::LookupResource(ctx, HandleFromInput(ctx, count + i), &vars_[i]));
    }
    TF_RETURN_IF_ERROR(LockAll(to_write));
    for (int i = 0; i < count; ++i) {
      tensorflow::Tensor* residual = vars_[i]->tensor();
      scalecom_tensor& t = (*tensors)[i];
      if (residual->dtype() != tensorflow::DT_FLOAT || residual->NumElements() != t.elements) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected a float32 residual of ", t.elements, " elements for tensor ", i,
                         "; got ", tensorflow::DataTypeString(residual->dtype()), " of shape ",
                         residual->shape().DebugString()));
      }
      if (to_write) TF_RETURN_IF_ERROR(OwnBuffer(ctx, device, residual));
      t.residual = residual->flat<float>().data();
    }
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
          "expected ", order.size(), " different residuals; got one of them more than once"));
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

  // Somebody who has read the variable may still hold its buffer, and must not see it change.
  template <typename Device>
  static absl::Status OwnBuffer(tensorflow::OpKernelContext* ctx, Device* device,
                                tensorflow::Tensor* residual) {
    if (residual->RefCountIsOne()) return absl::OkStatus();
    tensorflow::Tensor copy;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(residual->dtype(), residual->shape(), &copy));
    TF_RETURN_IF_ERROR(device->Copy(copy.data(), residual->data(), residual->TotalBytes()));
    *residual = std::move(copy);
    return absl::OkStatus();
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::mutex_lock> writing_;
  std::vector<tensorflow::tf_shared_lock> reading_;
};

}  // namespace scalecom

#endif  // SCALECOM_TF_RESIDUALS_H_
