// Facts about the build, as text that can be read from the library's file without loading it.
#ifndef SCALECOM_TF_RECORD_H_
#define SCALECOM_TF_RECORD_H_

#define SCALECOM_TEXT_OF(...) #__VA_ARGS__
#define SCALECOM_TEXT(...) SCALECOM_TEXT_OF(__VA_ARGS__)

// Exported, so that no linker leaves it out. The value may be a list.
#define SCALECOM_RECORD(name, ...)                                                             \
  extern "C" {                                                                                 \
  extern const char scalecom_built_##name[] __attribute__((visibility("default")));            \
  const char scalecom_built_##name[] = "scalecom_built:" #name "=" SCALECOM_TEXT(__VA_ARGS__); \
  }

#endif  // SCALECOM_TF_RECORD_H_
