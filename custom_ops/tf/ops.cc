// The interface of the TensorFlow operations: inputs, attributes, shapes, documentation.
//
// All take the compressed tensors of one replica: their gradients, in any float types, and the
// handles of their residuals, float32 variables of the same sizes.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalecom {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

int64_t Kept(int64_t elements, int64_t size, int64_t keep, int64_t tail_keep) {
  return elements / size * keep + (elements % size ? tail_keep : 0);
}

// What all tensors together send: kept values, and 32-bit words of packed offsets, which tensors
// with offsets of equal width fill together.
struct Sizes {
  int64_t kept = 0;
  int64_t words = 0;
};

absl::Status SizesOf(InferenceContext* c, int tensors, Sizes* sizes) {
  std::vector<int64_t> size, keep, tail_keep, width;
  TF_RETURN_IF_ERROR(c->GetAttr("chunk_size", &size));
  TF_RETURN_IF_ERROR(c->GetAttr("chunk_keep", &keep));
  TF_RETURN_IF_ERROR(c->GetAttr("tail_keep", &tail_keep));
  TF_RETURN_IF_ERROR(c->GetAttr("offset_bytes", &width));
  for (const auto* list : {&size, &keep, &tail_keep, &width}) {
    if (static_cast<int>(list->size()) != tensors) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected chunk_size, chunk_keep, tail_keep and offset_bytes for each of ", tensors,
          " tensors; got ", size.size(), ", ", keep.size(), ", ", tail_keep.size(), " and ",
          width.size()));
    }
  }
  int64_t bytes[5] = {0, 0, 0, 0, 0};
  for (int i = 0; i < tensors; ++i) {
    if (size[i] < 1 || (width[i] != 1 && width[i] != 2 && width[i] != 4)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected chunk_size >= 1 and offset_bytes of 1, 2 or 4; got ", size[i],
                       " and ", width[i], " for tensor ", i));
    }
    const DimensionHandle elements = c->NumElements(c->input(i));
    if (!c->ValueKnown(elements)) {
      sizes->kept = sizes->words = InferenceContext::kUnknownDim;
      return absl::OkStatus();
    }
    const int64_t kept = Kept(c->Value(elements), size[i], keep[i], tail_keep[i]);
    sizes->kept += kept;
    bytes[width[i]] += kept * width[i];
  }
  for (int64_t b : bytes) sizes->words += (b + 3) / 4;
  return absl::OkStatus();
}

int Tensors(InferenceContext* c) {
  std::vector<tensorflow::DataType> types;
  return c->GetAttr("Ts", &types).ok() ? static_cast<int>(types.size()) : 0;
}

absl::Status SelectShape(InferenceContext* c) {
  Sizes sizes;
  TF_RETURN_IF_ERROR(SizesOf(c, Tensors(c), &sizes));
  c->set_output(0, c->Vector(sizes.words));
  return absl::OkStatus();
}

absl::Status GatherShape(InferenceContext* c) {
  const int tensors = Tensors(c);
  Sizes sizes;
  TF_RETURN_IF_ERROR(SizesOf(c, tensors, &sizes));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->Merge(c->input(2 * tensors), c->Vector(sizes.words), &unused));
  c->set_output(0, c->Vector(sizes.kept));
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* c) {
  const int tensors = Tensors(c);
  Sizes sizes;
  TF_RETURN_IF_ERROR(SizesOf(c, tensors, &sizes));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->Merge(c->input(2 * tensors), c->Vector(sizes.words), &unused));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2 * tensors + 1), c->Vector(sizes.kept), &unused));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2 * tensors + 2), c->Vector(sizes.kept), &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * tensors + 3), 0, &unused));
  for (int i = 0; i < tensors; ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ScalecomSelect")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Output("words: int32")
    .Attr("Ts: list({float, half, bfloat16, double}) >= 1")
    .Attr("N: int >= 1")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetShapeFn(SelectShape)
    .Doc(R"doc(
Offsets of the largest |residual + gradient| of each chunk, packed.

The offsets of all tensors with 1-byte offsets come first, then those with 2, then with 4; each
group is little-endian and padded with zeros to whole words.
)doc");

REGISTER_OP("ScalecomAllFinite")
    .Input("gradients: Ts")
    .Output("finite: bool")
    .Attr("Ts: list({float, half, bfloat16, double}) >= 1")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Whether every element is finite, read as float32.");

REGISTER_OP("ScalecomGather")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Input("words: int32")
    .Output("values: wire")
    .Attr("Ts: list({float, half, bfloat16, double}) >= 1")
    .Attr("N: int >= 1")
    .Attr("wire: {float, half, bfloat16}")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetShapeFn(GatherShape)
    .Doc("residual + gradient at the packed offsets, tensor after tensor, in the wire's type.");

REGISTER_OP("ScalecomUpdate")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Input("words: int32")
    .Input("values: wire")
    .Input("reduced: wire")
    .Input("finite: bool")
    .Output("outputs: Ts")
    .Attr("Ts: list({float, half, bfloat16, double}) >= 1")
    .Attr("N: int >= 1")
    .Attr("wire: {float, half, bfloat16}")
    .Attr("beta: float")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"doc(
Filters the residuals in place and scatters `reduced` into dense outputs.

Where `finite` is false residuals stay as they are, and the outputs are zeros.
)doc");

}  // namespace scalecom
