// How a thread computes while the core uses it.
#ifndef SCALECOM_CORE_CPU_FLOAT_MODE_H_
#define SCALECOM_CORE_CPU_FLOAT_MODE_H_

#include <stdint.h>

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
#elif defined(__aarch64__)
  FloatMode() : saved_(get()) { set(kFlushOperandsAndResults); }
  ~FloatMode() { set(saved_); }

 private:
  static constexpr uint64_t kFlushOperandsAndResults = uint64_t{1} << 24;
  static uint64_t get() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
  const uint64_t saved_;
#endif
};

}  // namespace scalecom

#endif  // SCALECOM_CORE_CPU_FLOAT_MODE_H_
