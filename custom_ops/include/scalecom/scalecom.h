/* The C ABI of the ScaleCom core: types, promises, and the CPU functions.
 *
 * One step of the algorithm, for a list of tensors that are exchanged together
 * (p = residual + gradient, computed in float32):
 *
 *   compensate  p, in an array of its own or in the gradient's; is every p finite?
 *   select      the same, and offsets of the k largest |p| in each chunk
 *   gather      p at those offsets, in the type that travels; there p - sent takes its place
 *   flag        one more value to travel: not finite if a p is not
 *   filter      residual' = (1 - beta) * residual + beta * (p - sent), sent being 0 where not
 *               selected, in the place of p - sent: with beta = 1 it is there already. Where all
 *               was not finite, residual' = residual
 *   scatter     output = reduced where selected, 0 elsewhere
 *   descend     variable -= learning_rate * value at some indices
 *
 * So a step writes next step's residual beside this step's, which stands until all is known to be
 * finite. A float32 gradient, residual and p take 12 bytes an element to move, and that is all but
 * the output.
 *
 * Promises that hold for every function, on every instruction set and device:
 *
 * - Every function takes the whole list; no tensor is concatenated or copied.
 * - Nothing is allocated, no exception passes, and no state is kept between calls.
 *   Memory, threads and streams belong to the caller.
 * - Results depend on the inputs alone, never on the number of threads or the
 *   instruction set: equal to the bit.
 * - Arithmetic is float32, each product and each sum rounded on its own (products are
 *   never contracted into fused multiply-adds). 1 - beta is beta, rounded to float32, taken from
 *   1 in float32.
 * - Subnormal float32 numbers are zeros, as operands and as results, whatever the calling thread's
 *   mode: what TensorFlow's threads make of them. (On processors other than x86-64 and aarch64 it
 *   is the calling threads' mode that counts.)
 *   A float64 that is less than the smallest normal float32, and would be rounded up to it, is
 *   that or zero, as the processor has it.
 * - Ties go to the lowest offset. -0 and +0 are equal.
 * - Order: chunk after chunk; within a chunk by decreasing |p|, ties by offset.
 *   (Exact selection: by increasing index.)
 * - NaN and infinity: NaN > infinity > finite, and every NaN is equal to every other.
 *   Offsets are as ever; the `nonfinite` flag says not to use them.
 * - An offset out of its chunk's range (corrupt input) is never used as an address:
 *   gather yields NaN there, scatter and descend pass over it. Offsets given to gather and
 *   scatter are otherwise taken to be distinct within a chunk, indices given to descend distinct.
 * - Conversions round to nearest even. A finite value stays finite: on its way to
 *   float16 or bfloat16 it saturates. NaN and infinity pass.
 * - `sent` above is what gather wrote, to the bit.
 * - The wire is a type and a limit. Before its conversion a finite p becomes at most
 *   wire_limit in magnitude, a number of that type, so that a sum of several stays finite;
 *   wire_limit > 0, INFINITY for none.
 */
#ifndef SCALECOM_SCALECOM_H_
#define SCALECOM_SCALECOM_H_

#include <stdint.h>

#if defined(__GNUC__)
#define SCALECOM_API __attribute__((visibility("default")))
#else
#define SCALECOM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What every function returns. Arguments are checked before anything is written. A function of a
 * device may also return SCALECOM_DEVICE_ERROR plus the number that the device's runtime has for
 * what went wrong. */
enum {
  SCALECOM_OK = 0,
  SCALECOM_INVALID_ARGUMENT = 1,
  SCALECOM_WORKSPACE_TOO_SMALL = 2,
  SCALECOM_DEVICE_ERROR = 1 << 16
};

/* The element types: the one table that numbers, sizes, checks, switches and the attributes of the
 * TensorFlow operations come from. SCALECOM_FLOAT32 is the number of the first.
 *
 *   X(NAME, number, name, bytes, gradient, wire)
 *
 * gradient: whether gradients and outputs may have it; wire: whether values may travel in it.
 * (tf_scalecom asks for float32 where values travel in float16, and scales and narrows them itself:
 * that entry is for other callers, and costs no more than the row.) */
#define SCALECOM_TYPES(X)           \
  X(FLOAT32, 0, float32, 4, 1, 1)   \
  X(FLOAT16, 1, float16, 2, 1, 1)   \
  X(BFLOAT16, 2, bfloat16, 2, 1, 1) \
  X(FLOAT64, 3, float64, 8, 1, 0)

#define SCALECOM_NUMBER(NAME, number, ...) SCALECOM_##NAME = number,
enum { SCALECOM_TYPES(SCALECOM_NUMBER) };

/* The rules of selection, X(NAME, number, name); SCALECOM_CHUNK is the number of the first.
 *
 *   chunk  the largest |p| of each chunk, by decreasing |p|; chunk_keep <= SCALECOM_MAX_CHUNK_KEEP
 *   exact  the same over the whole tensor, by increasing index: tensors have one chunk
 *          (chunk_size = max(1, elements)) and any chunk_keep */
#define SCALECOM_SELECTIONS(X) \
  X(CHUNK, 0, chunk)           \
  X(EXACT, 1, exact)

enum { SCALECOM_SELECTIONS(SCALECOM_NUMBER) };
#undef SCALECOM_NUMBER

enum { SCALECOM_MAX_CHUNK_KEEP = 16 };

/* One tensor: where it lies and how it is cut into chunks.
 *
 * Chunk c covers elements [c * chunk_size, min((c + 1) * chunk_size, elements)). Each full
 * chunk keeps chunk_keep elements; a short last chunk keeps tail_keep. The kept elements
 * of the tensor are numbered chunk after chunk; `offsets`, `values` and `reduced` hold one
 * entry for each.
 *
 * Exact selection is the layout of one chunk: chunk_size = elements, chunk_keep = k. Where
 * chunk_keep exceeds SCALECOM_MAX_CHUNK_KEEP, offsets must increase within the chunk (as
 * exact selection writes them).
 *
 * Pointers are aligned to their element; aligned to 64 bytes is fastest. A pointer that a
 * function does not name may be null. */
typedef struct scalecom_tensor {
  int64_t elements;      /* >= 0; may exceed 2^31 */
  int64_t chunk_size;    /* 1 .. 2^(8 * offset_bytes) */
  int64_t chunk_keep;    /* 1 .. chunk_size */
  int64_t tail_keep;     /* 1 .. length of the short last chunk; ignored without one */
  int64_t offset_bytes;  /* 1, 2 or 4: the width of an unsigned little-endian offset */
  const void* gradient;  /* [elements], gradient type */
  const float* residual; /* [elements] */
  float* compensated;  /* [elements]: p, then p - sent, then residual'; may be a float32 gradient */
  void* offsets;       /* [kept], offset_bytes each */
  void* values;        /* [kept], wire type: what gather writes, to be sent */
  const void* reduced; /* [kept], wire type: what came back from the reduction */
  void* output;        /* [elements], gradient type */
} scalecom_tensor;

/* How a CPU function runs its tasks. `run` must call task(context, i) exactly once for
 * every i in [0, tasks), in any order, from any threads, and return when all have
 * returned. A null executor runs them on the calling thread. */
typedef void (*scalecom_task)(void* context, int64_t index);
typedef struct scalecom_executor {
  void (*run)(void* state, int64_t tasks, scalecom_task task, void* context);
  void* state;
} scalecom_executor;

/* An executor's `run` that starts threads for this call; `state` points to an int32_t, the
 * number of threads wanted, the caller's included. For programs without a pool. */
SCALECOM_API void scalecom_threads_run(void* state, int64_t tasks, scalecom_task task,
                                       void* context);

/* English for a status; never null. */
SCALECOM_API const char* scalecom_status_text(int32_t status);

/* The narrowest offset_bytes that holds every offset of a chunk, or 0 above 2^32. */
SCALECOM_API int64_t scalecom_offset_bytes(int64_t chunk_size);

/* Number of kept elements of a tensor, or -1 if its layout is invalid. */
SCALECOM_API int64_t scalecom_tensor_kept(const scalecom_tensor* tensor);

/* "avx512", "avx2" or "portable": what the CPU functions use here. The environment
 * variable SCALECOM_ISA, read once, can ask for a lesser one. */
SCALECOM_API const char* scalecom_cpu_isa(void);

/* Reads gradient, residual; writes compensated.
 * Sets *nonfinite to 1 if any p is NaN or infinite (so also if a gradient is), and
 * never to 0: the caller does, and may accumulate over calls. */
SCALECOM_API int32_t scalecom_gradients_compensate_cpu(const scalecom_tensor* tensors,
                                                       int64_t count, int32_t gradient_type,
                                                       uint32_t* nonfinite,
                                                       const scalecom_executor* executor);

/* Bytes that a selection needs besides its arguments; -1 for an unknown one or an invalid layout.
 */
SCALECOM_API int64_t scalecom_offsets_workspace_cpu(const scalecom_tensor* tensors, int64_t count,
                                                    int32_t selection);

/* Reads gradient, residual; writes compensated, offsets; flags as compensate does.
 * The workspace is 16-byte aligned, and may be null where none is needed. */
SCALECOM_API int32_t scalecom_offsets_select_cpu(const scalecom_tensor* tensors, int64_t count,
                                                 int32_t selection, int32_t gradient_type,
                                                 uint32_t* nonfinite, void* workspace,
                                                 int64_t workspace_bytes,
                                                 const scalecom_executor* executor);

/* Reads offsets; writes values, in wire_type (not FLOAT64); updates compensated. */
SCALECOM_API int32_t scalecom_values_gather_cpu(const scalecom_tensor* tensors, int64_t count,
                                                int32_t wire_type, float wire_limit,
                                                const scalecom_executor* executor);

/* Writes *flag, in wire_type: 0 if *nonfinite is 0, else infinity. It may lie behind the
 * values of the last tensor and be reduced with them. */
SCALECOM_API int32_t scalecom_flag_write_cpu(const uint32_t* nonfinite, int32_t wire_type,
                                             void* flag);

/* Reads residual; updates compensated, which gather has left. 0 < beta <= 1. Where *finite is 0
 * compensated becomes the residual; else, with a beta of 1, there is nothing to do. */
SCALECOM_API int32_t scalecom_residuals_filter_cpu(const scalecom_tensor* tensors, int64_t count,
                                                   float beta, const uint8_t* finite,
                                                   const scalecom_executor* executor);

/* Reads offsets, reduced; writes output. */
SCALECOM_API int32_t scalecom_outputs_scatter_cpu(const scalecom_tensor* tensors, int64_t count,
                                                  int32_t gradient_type, int32_t wire_type,
                                                  const scalecom_executor* executor);

/* Some elements of a variable, and a gradient that is 0 elsewhere. */
typedef struct scalecom_slices {
  int64_t elements;       /* of the variable */
  int64_t size;           /* of the arrays below */
  float* variable;        /* [elements] */
  const int64_t* indices; /* [size] */
  const float* values;    /* [size] */
} scalecom_slices;

/* Updates variables: each product with *learning_rate rounded, then each difference. */
SCALECOM_API int32_t scalecom_variables_descend_cpu(const scalecom_slices* slices, int64_t count,
                                                    const float* learning_rate,
                                                    const scalecom_executor* executor);

#ifdef __cplusplus
}
#endif

#endif /* SCALECOM_SCALECOM_H_ */
