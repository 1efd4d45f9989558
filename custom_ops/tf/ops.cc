// The interface of the TensorFlow operations: inputs, attributes, shapes, documentation.
//
// All take the compressed tensors of one replica. Residuals are handles of float32 variables of the
// same sizes.
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

// What all tensors together send; -1 where the size of one is not known. Tensor i is as large as
// input `first + i`.
struct Sizes {
  int64_t values = InferenceContext::kUnknownDim;  // the finite flag included
  int64_t words = InferenceContext::kUnknownDim;
};

absl::Status SizesOf(InferenceContext* c, const Layout& layout, int first, Sizes* sizes) {
  std::vector<scalecom_tensor> tensors(layout.size());
  for (int i = 0; i < layout.size(); ++i) {
    const DimensionHandle elements = c->NumElements(c->input(first + i));
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

absl::Status CompensateShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(ReadTypes(c, layout.size(), &types));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, 0, &sizes));
  for (int i = 0; i < layout.size(); ++i) c->set_output(i, c->input(i));
  c->set_output(layout.size(), c->Vector(sizes.words));
  c->set_output(layout.size() + 1, c->Scalar());
  return absl::OkStatus();
}

absl::Status GatherShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, 0, &sizes));
  TF_RETURN_IF_ERROR(CheckVector(c, layout.size(), sizes.words, "words"));
  ShapeHandle nonfinite;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(layout.size() + 1), 0, &nonfinite));
  c->set_output(0, c->Vector(sizes.values));
  for (int i = 0; i < layout.size(); ++i) c->set_output(1 + i, c->input(i));
  return absl::OkStatus();
}

absl::Status FilterShape(InferenceContext* c) {
  int size;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &size));
  ShapeHandle finite;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * size), 0, &finite));
  for (int i = 0; i < size; ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

absl::Status SubtractShape(InferenceContext* c) {
  int size;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &size));
  for (int i = 0; i < size; ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

absl::Status ScatterShape(InferenceContext* c) {
  Layout layout;
  Sizes sizes;
  TF_RETURN_IF_ERROR(layout.Read(c));
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(ReadTypes(c, layout.size(), &types));
  TF_RETURN_IF_ERROR(SizesOf(c, layout, 2, &sizes));
  TF_RETURN_IF_ERROR(CheckVector(c, 0, sizes.words, "words"));
  TF_RETURN_IF_ERROR(CheckVector(c, 1, sizes.values, "reduced"));
  for (int i = 0; i < layout.size(); ++i) c->set_output(i, c->input(2 + i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ScalecomCompensate")
    .Input("gradients: Ts")
    .Input("residuals: N * resource")
    .Input("leads: bool")
    .Output("compensated: N * float")
    .Output("words: int32")
    .Output("nonfinite: uint32")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 1")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .Attr(absl::StrCat("selection: list(", AllowedSelections(), ")"))
    .SetShapeFn(CompensateShape)
    .Doc(R"doc(
residual + gradient; where this replica leads, what each tensor's rule selects of it.

A float32 gradient that nobody else needs is where it is written. Offsets are packed: those of all
tensors with 1-byte offsets come first, then those with 2, then with 4; each group is little-endian
and padded with zeros to whole words. Without `leads` all words are 0.

`nonfinite` is 1 if any element of residual + gradient is not finite in float32; else 0.
)doc");

REGISTER_OP("ScalecomGather")
    .Input("compensated: N * float")
    .Input("words: int32")
    .Input("nonfinite: uint32")
    .Output("values: wire")
    .Output("unsent: N * float")
    .Attr("N: int >= 1")
    .Attr(absl::StrCat("wire: ", Allowed(&ElementType::wire)))
    .Attr("limits: list(float)")
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetShapeFn(GatherShape)
    .Doc(R"doc(
The elements at the packed offsets, tensor after tensor, in the wire's type; then the flag.

Where finite, those of tensor i are at most `limits[i]` in magnitude. The flag is 0, or infinity if
`nonfinite` is not 0: its sum over all replicas says whether what all of them have is finite.

`unsent` is `compensated` without what is sent, in the same buffers where nobody else needs them.
)doc");

REGISTER_OP("ScalecomFilter")
    .Input("unsent: N * float")
    .Input("residuals: N * resource")
    .Input("finite: bool")
    .Output("free: N * float")
    .Attr("N: int >= 1")
    .Attr("beta: float")
    .SetIsStateful()
    .SetShapeFn(FilterShape)
    .Doc(R"doc(
(1 - beta) residual + beta unsent becomes the residual, in the buffer of `unsent`.

`free` are the buffers that the residuals had, as tensors whose elements nobody needs.

Where `finite` is false the residuals' elements stay as they are, in the buffers of `unsent`, too.
)doc");

REGISTER_OP("ScalecomScatter")
    .Input("words: int32")
    .Input("reduced: wire")
    .Input("free: N * float")
    .Output("outputs: Ts")
    .Attr(absl::StrCat("Ts: list(", Allowed(&ElementType::gradient), ") >= 1"))
    .Attr("N: int >= 1")
    .Attr(absl::StrCat("wire: ", Allowed(&ElementType::wire)))
    .Attr("chunk_size: list(int)")
    .Attr("chunk_keep: list(int)")
    .Attr("tail_keep: list(int)")
    .Attr("offset_bytes: list(int)")
    .SetShapeFn(ScatterShape)
    .Doc(R"doc(
`reduced` at the packed offsets, 0 elsewhere, in the shapes of `free`.

`reduced` is a sum over what ScalecomGather makes; its last element, the flag, is not read. Float32
outputs take the buffers of `free` where nobody else needs them.
)doc");

REGISTER_OP("ScalecomDescend")
    .Input("variables: N * resource")
    .Input("indices: N * int64")
    .Input("values: N * float")
    .Input("learning_rate: float")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
variable -= values * learning_rate at the indices of the flat variable, in place.

Each product is rounded, then each difference. Indices are distinct; one out of range is passed over.
)doc");

REGISTER_OP("ScalecomSubtract")
    .Input("tensors: N * float")
    .Input("indices: N * int64")
    .Input("values: N * float")
    .Input("factor: float")
    .Output("differences: N * float")
    .Attr("N: int >= 1")
    .SetShapeFn(SubtractShape)
    .Doc(R"doc(
tensor - values * factor at the indices of the flat tensor, in its own buffer where nobody else needs it.

Indices and values are matrices, whose rows are subtracted in turn. The indices of a row are distinct; one
out of range is passed over.
)doc");

}  // namespace scalecom
