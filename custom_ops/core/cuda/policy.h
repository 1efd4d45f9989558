// What the kernels are tuned by: every number that is a choice, not a fact of the hardware or of
// the algorithm. One policy for compute capability 8.0 and above. They are reasoned from the bytes
// to move and from what ptxas says of registers: no GPU was at hand to measure them on.
#ifndef SCALECOM_CORE_CUDA_POLICY_H_
#define SCALECOM_CORE_CUDA_POLICY_H_

#include <stdint.h>

#include "core/types.h"

namespace scalecom {

struct Policy {
  // Of every block, but where a warp or a thread is all there is to do.
  static constexpr int kThreads = 256;

  // Elements of one load: 128 bits of float32, which is the widest there is, 64 of 16-bit types.
  static constexpr int kVector = 4;

  // Tensors of one launch: as many as fit the 32 KiB of kernel parameters.
  static constexpr int kListTensors = 256;

  // The largest of each chunk, several lanes to a chunk.
  struct SelectOne {
    // Chunks that a lane works on, one after the other: a block looks up its tensor once for all.
    static constexpr int kRounds = 4;
    // Vectors of a chunk that are on their way to a lane at once.
    static constexpr int kUnroll = 4;
    // Fewer lanes than a chunk has vectors: each then has several loads to wait for at once,
    // and the reduction is shorter.
    SCALECOM_HD static int lanes(const scalecom_tensor& t) {
      return t.chunk_size <= 32 ? 4 : t.chunk_size <= 256 ? 8 : t.chunk_size <= 1024 ? 16 : 32;
    }
  };

  // The few largest of each chunk, a warp to a chunk.
  struct SelectFew {
    // Vectors of a lane in a tile: 4 KiB of keys in shared memory for each warp. As many as make a
    // column's keys (kRows * kVector) one for each lane.
    static constexpr int kRows = 8;
    // Blocks on a multiprocessor: ptxas counts on five for 9.0, and would spill.
    static constexpr int kBlocks = 4;
  };

  // Exact selection.
  struct Exact {
    // Vectors that a thread takes of a tile: a tile's counters cost one pass over shared memory.
    static constexpr int kVectors = 8;
    // Those on their way at once.
    static constexpr int kUnroll = 4;
  };

  // Compensate, filter and scatter.
  struct Finish {
    // Vectors that a thread takes of a tile, all loaded before the first is used.
    static constexpr int kVectors = 4;
  };
};

}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_POLICY_H_
