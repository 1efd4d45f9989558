// The interface of the TensorFlow operations: inputs, attributes, shapes, documentation.
//
// All take the compressed tensors of one replica: their gradients, in any float types, and the
// handles of their residuals, float32 variables of the same sizes.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/layout.h"
#include "tf/types.h"

namespace scalecom {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// What all tensors together send; -1 where the size of one is not known.
struct Sizes {
  int64_t values = InferenceContext::kUnknownDim;  // the finite flag included
  int64_t words = InferenceContext::kUnknownDim;
};

absl::Status SizesOf(InferenceContext* c, const Layout& layout, Sizes* sizes) {
  std::vector<scalecom_tensor> tensors(layout.size());
  for (int i = 0; i < layout.size(); ++i) {
    const DimensionHandle elements = c->NumElements(c->input(i));
    if (!c->ValueKnown(elements)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(layout.SetTensor(i, c->Value(elements), &tensors[i]));
  }
  const Packing packing(tensors);
  *sizes = {packing.kept + 1, packing.words};
  return absl::OkStatus();
}

absl::Status CheckVector(InferenceContext* c, int input, int64_t size, const char* name) {
  ShapeHandle unused;
  if (c->Merge(c->input(input), c->Vector(size), &unused).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", size, " elements of ", name,
                                                 "; got shape ", c->DebugString(c->input(input))));
}

absl::Status SelectShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, &sizes));
  c->set_output(0, c->Vector(sizes.words));
  return absl::OkStatus();
}

absl::Status GatherShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, &sizes));
  TF_RETURN_IF_ERROR(CheckVector(c, 2 * layout.size(), sizes.words, "words"));
  ShapeHandle nonfinite;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * layout.size() + 1), 0, &nonfinite));
  c->set_output(0, c->Vector(sizes.values));
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, &sizes));
  const int first = 2 * layout.size();
  TF_RETURN_IF_ERROR(CheckVector(c, first, sizes.words, "words"));
  TF_RETURN_IF_ERROR(CheckVector(c, first + 1, sizes.values, "reduced"));
  ShapeHandle finite;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 2), 0, &finite));
  for (int i = 0; i < layout.size(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ScalecomSelect")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Output("words: int32")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 1")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .Attr(absl::StrCat("selection: list(", AllowedSelections(), ")"))
    .SetShapeFn(SelectShape)
    .Doc(R"doc(
Offsets of the elements of residual + gradient that each tensor's rule selects, packed.

The offsets of all tensors with 1-byte offsets come first, then those with 2, then with 4; each
group is little-endian and padded with zeros to whole words.
)doc");

REGISTER_OP("ScalecomAnyNonfinite")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Output("nonfinite: uint32")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 0")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
1 if any element of residual + gradient is not finite in float32; else 0.

Without residuals (N = 0): of the gradients.
)doc");

REGISTER_OP("ScalecomGather")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Input("words: int32")
    .Input("nonfinite: uint32")
    .Output("values: wire")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 1")
    .Attr(absl::StrCat("wire: ", Allowed(&ElementType::wire)))
    .Attr("limits: list(float)")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetShapeFn(GatherShape)
    .Doc(R"doc(
residual + gradient at the packed offsets, tensor after tensor, in the wire's type; then the flag.

Where finite, those of tensor i are at most `limits[i]` in magnitude. The flag is 0, or infinity if
`nonfinite` is not 0: its sum over all replicas says whether what all of them have is finite.
)doc");

REGISTER_OP("ScalecomUpdate")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Input("words: int32")
    .Input("reduced: wire")
    .Input("finite: bool")
    .Output("outputs: Ts")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 1")
    .Attr(absl::StrCat("wire: ", Allowed(&ElementType::wire)))
    .Attr("limits: list(float)")
    .Attr("beta: float")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"doc(
Filters the residuals in place and scatters `reduced` into dense outputs.

`reduced` is a sum over what ScalecomGather makes; its last element, the flag, is not read. What
gather made here is worked out again, so with the same wire and limits.

Where `finite` is false residuals stay as they are, and the outputs are zeros.
)doc");

}  // namespace scalecom
