// How a thread computes while the core uses it.
#ifndef SCALECOM_CORE_CPU_FLOAT_MODE_H_
#define SCALECOM_CORE_CPU_FLOAT_MODE_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace scalecom {

// Threads differ in what they do with subnormal numbers, and a result must not depend on which
// thread computed it. TensorFlow's take them for zeros, and so do its plain operations.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kNoTraps | kFlushResults | kFlushOperands); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kNoTraps = 0x1f80;
  static constexpr unsigned kFlushResults = 0x8000;
  static constexpr unsigned kFlushOperands = 0x0040;
  const unsigned saved_;
#endif
};

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_FLOAT_MODE_H_
