// What the kernels are tuned by: every number that is a choice, not a fact of the hardware or of
// the algorithm. One policy for all GPUs. They are reasoned from the bytes to move and from the
// machine code (bench/kernel_table.py): no GPU was at hand to measure them on.
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

  // Vectors of a gradient type that are as many bytes as `vectors` of float32, or fewer.
  template <typename T>
  SCALECOM_HD static constexpr int narrowed(int vectors) {
    return sizeof(T) > 4 ? vectors / 2 : vectors;
  }

  // Tensors of one launch: as many as fit the 32 KiB of kernel parameters.
  static constexpr int kListTensors = 256;

  // Any number of each small chunk, a thread to a chunk, and several of each chunk of middle size,
  // by way of shared memory.
  struct SelectTile {
    // The largest small chunk: with half of it in the best case, half a block is at work.
    static constexpr int kSmallChunk = 64;
    // Vectors that a thread takes of a tile, all loaded before the first is used. A chunk of middle
    // size has at most as many elements as the square of a thread's: 256.
    static constexpr int kVectors = 4;
    // Blocks on a multiprocessor for several of a chunk: what registers are left for.
    static constexpr int kMiddleBlocks = 4;
  };

  // The largest of each chunk, several lanes to a chunk.
  struct SelectOne {
    // Chunks that a lane works on, one after the other: a block looks up its tensor once for all.
    static constexpr int kRounds = 4;
    // Vectors of a lane that are loaded before the first is used. A third one of float64 fits the
    // registers of a block fewer; all in all there is then more in flight.
    template <typename T>
    static constexpr int kUnroll = sizeof(T) > 4 ? 3 : 4;
    // Blocks on a multiprocessor: what registers are left for.
    template <typename T>
    static constexpr int kBlocks = sizeof(T) > 4 ? 3 : 4;
    // Fewer lanes than a chunk has vectors: each then has several loads to wait for at once,
    // and the reduction is shorter.
    SCALECOM_HD static int lanes(const scalecom_tensor& t) {
      return t.chunk_size <= 256 ? 8 : t.chunk_size <= 1024 ? 16 : 32;
    }
  };

  // The few largest of each chunk, a warp to a chunk.
  struct SelectFew {
    // Vectors of a lane in a tile: 4 KiB of keys in shared memory for each warp. As many as make a
    // column's keys (kRows * kVector) one for each lane.
    static constexpr int kRows = 8;
    // Those loaded before the first is used. Few, as what comes then waits for other things: many
    // warps are worth more.
    static constexpr int kUnroll = 2;
    // Blocks on a multiprocessor, where its shared memory has room for them.
    static constexpr int kBlocks = 4;
  };

  // Exact selection.
  struct Exact {
    // Vectors that a thread takes of a tile: a tile's counters cost one pass over shared memory.
    static constexpr int kVectors = 8;
    // Those of the first pass, which reads two arrays, that are loaded before the first is used;
    // the others load all.
    static constexpr int kUnroll = 4;
  };

  // Compensate, filter and scatter.
  struct Finish {
    // Vectors that a thread takes of a tile; compensate and filter load all before they use one.
    static constexpr int kVectors = 4;
  };
};

}  // namespace scalecom

#endif  // SCALECOM_CORE_CUDA_POLICY_H_
