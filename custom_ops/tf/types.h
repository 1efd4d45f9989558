// The tables of scalecom.h as TensorFlow has them: by name.
#ifndef SCALECOM_TF_TYPES_H_
#define SCALECOM_TF_TYPES_H_

#include <string>

#include "core/types.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace scalecom {

// The core's number of a type.
inline absl::Status TypeOf(tensorflow::DataType type, int32_t* number) {
  for (const ElementType& known : kElementTypes) {
    tensorflow::DataType named;
    if (!tensorflow::DataTypeFromString(known.name, &named) || named != type) continue;
    *number = known.number;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("expected a type of the table in scalecom.h; got ",
                                                 tensorflow::DataTypeString(type),
                                                 ". Add a row for it."));
}

// What an operation's attribute may be: "{float32, float16}".
inline std::string Allowed(bool ElementType::* role) {
  std::string names;
  for (const ElementType& type : kElementTypes) {
    if (type.*role) absl::StrAppend(&names, names.empty() ? "" : ", ", type.name);
  }
  return absl::StrCat("{", names, "}");
}

inline std::string AllowedSelections() {
  std::string names;
  for (const Selection& selection : kSelections) {
    absl::StrAppend(&names, names.empty() ? "'" : ", '", selection.name, "'");
  }
  return absl::StrCat("{", names, "}");
}

}  // namespace scalecom

#endif  // SCALECOM_TF_TYPES_H_
