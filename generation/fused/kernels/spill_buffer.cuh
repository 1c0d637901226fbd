// Spills to device memory of what shared memory has no room for: the rows that the backward pass of every block but the
// last reads again (of every block, where parts take turns), and each MLP's hidden layer and its gradients while the
// attention goes backward (unless WARP_SPECIALIZED: consumers read them at once). Where gradients are spilled
// (SPILL_GRADIENTS), so is each lane's BlockMemory; and the residual stream while attention works (stream.cuh).
//
// Each lane spills and reloads its own numbers, so no barrier is needed, and the cache can hold those of all models
// that are training at a time.
#pragma once
#include "matrices.cuh"

struct SpillBuffer {
    // indices of factors, which hold 16 columns of a warp's rows; x1, joined and x2 of a block are NEXT_ROWS behind
    // those of the block before
    static constexpr int EARLIER = TAKE_TURNS ? BLOCKS : BLOCKS > 2 ? BLOCKS - 1 : 1;
    static constexpr int ROW_FACTORS = (2 * DIM + INNER) / 16;
    static constexpr int NEXT_ROWS = EARLIER > 1 ? ROW_FACTORS : 0;
    static constexpr int X1 = 0, JOINED = X1 + DIM / 16, X2 = JOINED + INNER / 16, HIDDEN_ROWS = EARLIER * ROW_FACTORS;
    static constexpr int D_HIDDEN = HIDDEN_ROWS + BLOCKS * (HIDDEN / 16), MEMORY = D_HIDDEN + HIDDEN / 16;
    static constexpr int MEMORY_FACTORS = SPILL_GRADIENTS ? 2 + (HEADS + 1) / 2 : 0;
    static constexpr int STREAM = MEMORY + EARLIER * MEMORY_FACTORS;
    static constexpr int FACTORS = STREAM + (RESIDUAL && !WARP_SPECIALIZED ? DIM / 8 : 0);
    static constexpr int FACTOR_WORDS = 4 * WARP;
    static constexpr int WORDS = EXAMPLES_AT_ONCE * GROUP_WARPS * FACTORS * FACTOR_WORDS;
    u32* start;  // of the model's WORDS

    DEVICE static int rows(int block, int place) { return place + block * NEXT_ROWS; }
    DEVICE static int hidden(int block) { return HIDDEN_ROWS + block * (HIDDEN / 16); }
    DEVICE static int memory(int block) { return MEMORY + block * MEMORY_FACTORS; }

    // The address of this lane's words of a factor; from the thread's index, so that no register keeps it for long.
    DEVICE u32* at(int place) const {
        const u32 thread = thread_index();
        return start + (thread / WARP * FACTORS + place) * FACTOR_WORDS + 4 * (thread % WARP);
    }
    template <class Number, int COUNT> DEVICE void spill(int place, const Number (&rows)[COUNT][4]) const {
        u32* const first = at(place);
        #pragma unroll
        for (int k = 0; k < COUNT; k++) write_words(first + k * FACTOR_WORDS, rows[k]);
    }
    template <class Number, int COUNT> DEVICE void reload(int place, Number (&rows)[COUNT][4]) const {
        const u32* const first = at(place);
        #pragma unroll
        for (int k = 0; k < COUNT; k++) read_words(rows[k], first + k * FACTOR_WORDS);
    }
    // The same, to shared memory.
    template <int N> DEVICE void reload(const Thread& me, int place, TokenRows<N> matrix) const {
        PackedRows<N> rows;
        reload(place, rows);
        store_rows(me, matrix, rows);
    }
};
