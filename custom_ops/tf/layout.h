// The layout of an operation's tensors: read from its attributes by shape functions and kernels
// alike, and checked in one place.
#ifndef SCALECOM_TF_LAYOUT_H_
#define SCALECOM_TF_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "scalecom/scalecom.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace scalecom {

class Layout {
 public:
  // `Context` is an OpKernelConstruction or an InferenceContext.
  template <typename Context>
  absl::Status Read(Context* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("N", &size_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("chunk_size", &chunk_size_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("chunk_keep", &chunk_keep_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("tail_keep", &tail_keep_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("offset_bytes", &offset_bytes_));
    for (const auto* list : {&chunk_size_, &chunk_keep_, &tail_keep_, &offset_bytes_}) {
      if (static_cast<int>(list->size()) != size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected chunk_size, chunk_keep, tail_keep and offset_bytes for each of ",
                         size(), " tensors; got ", chunk_size_.size(), ", ", chunk_keep_.size(),
                         ", ", tail_keep_.size(), " and ", offset_bytes_.size()));
      }
    }
    return absl::OkStatus();
  }

  int size() const { return size_; }

  // Tensor i, of so many elements; its pointers are null.
  absl::Status SetTensor(int i, int64_t elements, scalecom_tensor* tensor) const {
    *tensor = scalecom_tensor{};
    tensor->elements = elements;
    tensor->chunk_size = chunk_size_[i];
    tensor->chunk_keep = chunk_keep_[i];
    tensor->tail_keep = tail_keep_[i];
    tensor->offset_bytes = offset_bytes_[i];
    const char* expected = nullptr;
    if (scalecom_tensor_kept(tensor) < 0) {
      expected =
          "chunk_size in 1 .. 2^(8 * offset_bytes), offset_bytes of 1, 2 or 4, chunk_keep in "
          "1 .. chunk_size, and tail_keep in 1 .. chunk_keep within a short last chunk";
    } else if (tensor->chunk_size == elements) {
      if (elements > UINT32_MAX) expected = "a selection over one chunk of less than 2^32 elements";
    } else if (tensor->chunk_keep > SCALECOM_MAX_CHUNK_KEEP) {
      expected = "chunk_keep of at most 16 where there are several chunks";
    }
    if (expected == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", expected, "; got, for tensor ", i, " of ", elements, " elements, chunk_size ",
        tensor->chunk_size, ", chunk_keep ", tensor->chunk_keep, ", tail_keep ", tensor->tail_keep,
        ", offset_bytes ", tensor->offset_bytes));
  }

 private:
  int size_ = 0;
  std::vector<int64_t> chunk_size_, chunk_keep_, tail_keep_, offset_bytes_;
};

// The types of the gradients, of any layout.
template <typename Context>
absl::Status ReadTypes(Context* ctx, int tensors, std::vector<tensorflow::DataType>* types) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("Ts", types));
  if (static_cast<int>(types->size()) == tensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected a gradient for each of ", tensors, " tensors; got ", types->size()));
}

// Where each tensor's kept elements lie in what all of them send together.
struct Packing {
  std::vector<int64_t> first_kept;    // number of the first among all values
  std::vector<int64_t> first_offset;  // byte of its first offset in the words
  int64_t kept = 0;                   // values
  int64_t words = 0;                  // of 32 bits

  explicit Packing(const std::vector<scalecom_tensor>& tensors) : first_offset(tensors.size()) {
    for (const scalecom_tensor& t : tensors) {
      first_kept.push_back(kept);
      kept += scalecom_tensor_kept(&t);
    }
    // Offsets of equal width fill words together.
    for (int64_t width : {1, 2, 4}) {
      int64_t at = 4 * words;
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].offset_bytes != width) continue;
        first_offset[i] = at;
        at += width * scalecom_tensor_kept(&tensors[i]);
      }
      words = (at + 3) / 4;
    }
  }
};

}  // namespace scalecom

#endif  // SCALECOM_TF_LAYOUT_H_
