// The dimensions of the zoo's transformer, and how a thread block's warps share the work. Any dimensions will do that
// divide into tiles and that the kernels have room for (variants.py).
//
// The compiler's command line defines the numbers of zoo.TransformerSpec and of the protocol (_macros in compiled.py):
//
//     DIM, HEADS, HEAD_DIM, HIDDEN, BLOCKS, TOKENS, CLASSES
//     FEATURES                  numbers per token: the pixels of a patch, or a word vector with its position added;
//                               unused where tokens are numbers of a vocabulary
//     FLAT_QUERY, FLAT_KEY ...  where the first block's tensors start in the flat vector, in floats; those of block b
//                               start b * BLOCK_STRIDE later
//     FLAT_CLASSIFIER1 ...      where the classifier's tensors start; FLAT_EMBEDDING ... where there is an embedding;
//                               FLAT_POSITIONS and FLAT_UNEMBEDDING those of a language model, which has no classifier
//     PARAMETERS                the length of the flat vector
//     RESIDUAL                  1: each block adds to its input what attention and MLP make of it; 0: they replace it
//     SCORE_SCALE               1/√HEAD_DIM
//     UPDATE_EPSILON            added to the root of the second moment in an update
//
// and what the GPU's shared memory allows (variants.py):
//
//     EVALUATE_GROUPS           examples that a thread block measures at a time
//     SHARED_BYTES              shared memory per thread block
//     EXAMPLES_AT_ONCE          examples that a thread block trains on at a time: 1, 2 or 3. Some rows for their
//                               backward passes are spilled to device memory (spill_buffer.cuh)
//     ALL_WEIGHTS               1: shared memory has room for the weights of all blocks; 0: for those of one at a time
//     TAKE_TURNS                1: a block's MLP and its attention go backward one after the other, in the same memory
//     SPILL_GRADIENTS           0: gradients stay in registers for a whole step; 1: they are spilled to device memory
//                               between examples (gradients.cuh)
//     HAS_STMATRIX              1: the GPU has stmatrix, an instruction that stores matrices
#pragma once
#include "ptx.cuh"

#ifdef FLAT_UNEMBEDDING
constexpr bool CAUSAL = true;                 // a language model: tokens are numbers, and each predicts the next one
constexpr int FLAT_CLASSIFIER1 = 0, FLAT_CLASSIFIER1_BIAS = 0, FLAT_CLASSIFIER2 = 0, FLAT_CLASSIFIER2_BIAS = 0;
#else
constexpr bool CAUSAL = false;
constexpr int FLAT_UNEMBEDDING = 0, FLAT_POSITIONS = 0;
#endif
#ifdef FLAT_EMBEDDING_BIAS
constexpr bool IMAGES = true;
#else
constexpr bool IMAGES = false;                // word vectors are read as they are
constexpr int FLAT_EMBEDDING_BIAS = 0;
#ifndef FLAT_EMBEDDING
constexpr int FLAT_EMBEDDING = 0;
#endif
#endif
constexpr bool LEARNS_EMBEDDING = IMAGES || CAUSAL;
// Images and windows have all TOKENS. Texts have lengths; in training those that fit side by side share a group's rows.
constexpr bool PACKS = !LEARNS_EMBEDDING;

constexpr int TILE = 16;                      // token rows of one warp
constexpr int ROWS = 64;                      // room for the token rows of an example
constexpr int TOKEN_TILES = (TOKENS + TILE - 1) / TILE;  // tiles that hold TOKENS rows; only the last has padding
constexpr int GROUP_WARPS = ROWS / TILE;      // the four warps, a warpgroup, that share an example
constexpr int WARP = 32;
constexpr int GROUP_THREADS = GROUP_WARPS * WARP;
constexpr int INNER = HEADS * HEAD_DIM;       // columns of queries, keys and values: all heads side by side
constexpr int HEAD_TILES = HEAD_DIM / TILE;
static_assert(DIM % TILE == 0 && HEAD_DIM % TILE == 0 && HIDDEN % TILE == 0 && FEATURES % TILE == 0, "all are tiles");
static_assert(DIM <= 64 && INNER <= 64 && HIDDEN <= 128 && FEATURES <= 64, "registers can hold a warp's rows");
constexpr int VOCABULARY_TILES = CAUSAL ? (CLASSES + TILE - 1) / TILE : 0;
static_assert(TOKENS <= ROWS && CLASSES <= (CAUSAL ? 256 : TILE), "the tiles, or a byte per token, can hold them");
static_assert(SPILL_GRADIENTS || (DIM == 32 && INNER == 32 && HIDDEN == 64 && BLOCKS <= 2 &&
              FEATURES == (LEARNS_EMBEDDING ? 16 : 32)),
              "gradients of other dimensions or of a third block do not fit into registers");
static_assert(!(TAKE_TURNS && CAUSAL), "gradients of logits lie where a block's rows have a place of their own");
static_assert(!TAKE_TURNS || SPILL_GRADIENTS, "gradients of one part are written before the other overwrites its rows");

// With three examples their warps have no registers for gradients. They are producers then: they write the operands of
// the weight gradients to shared memory. Four more warps, the consumers, multiply and accumulate these, and draw the
// dropout masks (warp_specialized.cuh).
constexpr bool WARP_SPECIALIZED = EXAMPLES_AT_ONCE == 3;
static_assert(!(WARP_SPECIALIZED && SPILL_GRADIENTS), "the consumers' registers hold all gradients");
// Named barriers between an example's four producer warps and the consumers: its rows are written (FULL), or have been
// read (EMPTY). Numbered by group; barriers 1 to EXAMPLES_AT_ONCE are the groups' own.
constexpr int MLP_FULL = 1 + EXAMPLES_AT_ONCE, ATTENTION_FULL = MLP_FULL + EXAMPLES_AT_ONCE;
constexpr int MLP_EMPTY = ATTENTION_FULL + EXAMPLES_AT_ONCE, ATTENTION_EMPTY = MLP_EMPTY + EXAMPLES_AT_ONCE;
// There are no more than 16 of them. Producers arrive at this one for an example's logits and again for its attention;
// in between they wait for the consumers to be past it (MLP_EMPTY, which covers the logits' rows too).
constexpr int LOGITS_FULL = ATTENTION_FULL;

// Whether another block, or the block's own MLP, has overwritten its rows by the time it goes backward.
DEVICE bool is_earlier(int block) { return TAKE_TURNS || block < BLOCKS - 1; }

constexpr float LAYER_NORM_EPSILON = 1e-5f;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
constexpr float SCORE_TO_POWER = SCORE_SCALE * LOG2_E;   // exp(score/√D_k) = 2^(score·this)

constexpr u32 HALF = 2, FLOAT = 4, DOUBLE = 8;           // bytes

// A whole block goes backward at once, or its parts take turns.
enum Part { WHOLE, MLP, ATTENTION };

// A thread's indices: its group's warps hold 16 token rows each; a lane holds columns 8j + pair, 8j + pair + 1 of rows
// `row` and `row + 8` of its tile, the layout of the matrix units. The later tiles of a causal transformer have more
// scores to compute, so each of a multiprocessor's four schedulers gets different tiles of different groups.
struct Thread {
    int warp, lane, group, tile, row, pair;
    DEVICE Thread() {
        const u32 index = thread_index();  // unsigned: otherwise every division would have to handle a sign
        warp = index / WARP, lane = index % WARP;
        group = warp / GROUP_WARPS, tile = warp % GROUP_WARPS ^ (CAUSAL ? -group & 3 : 0);
        row = lane / 4, pair = 2 * (lane % 4);
    }
};
