// The residual stream (RESIDUAL): the rows that a block adds its attention and its MLP to, and their gradients.
//
// Every summand of the stream has passed a dropout of the same rate, so its factor s is left out of all of them: the
// LayerNorms that read the stream divide it out (norm.cuh).
//
// While an MLP works, a lane keeps its numbers in registers; in evaluation always. While attention works, which needs
// these registers, they are spilled as floats:
//
//     if WARP_SPECIALIZED    to shared memory that is free at the time: forward where `hidden` will be, backward where
//                            dy and x2 were
//     otherwise              to device memory (spill_buffer.cuh), since dy and x2 are still to be added to gradients
//
// A lane reads back what it wrote, and a warp's numbers lie within its own 16 rows of those matrices, so no barrier is
// needed.
#pragma once
#include "spill_buffer.cuh"

constexpr u32 HALF_STREAM = WARP * DIM / 4 * FLOAT;  // bytes of half of a warp's rows

struct Stream {
    u32 start, pitch;   // of the matrix whose rows are used
    u32 second;         // from the first half of a warp's numbers to the second
    SpillBuffer spill_buffer;

    DEVICE void spill(const Thread& me, const Rows<DIM>& rows) const {
        if constexpr (WARP_SPECIALIZED) {
            #pragma unroll
            for (int j = 0; j < DIM / 8; j++) store_floats(at(me, j), rows[j]);
        } else {
            spill_buffer.spill(SpillBuffer::STREAM, rows);
        }
    }
    DEVICE void reload(const Thread& me, Rows<DIM>& rows) const {
        if constexpr (WARP_SPECIALIZED) {
            #pragma unroll
            for (int j = 0; j < DIM / 8; j++) load_floats(rows[j], at(me, j));
        } else {
            spill_buffer.reload(SpillBuffer::STREAM, rows);
        }
    }

  private:
    DEVICE u32 at(const Thread& me, int j) const {
        constexpr int half = DIM / 16;
        return start + me.tile * TILE * pitch + j / half * second + (j % half * WARP + me.lane) * 4 * FLOAT;
    }
};
