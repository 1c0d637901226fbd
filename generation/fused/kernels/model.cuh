// The zoo's transformer as the kernels see it: dimensions, the flat weight vector, and the weights in shared memory.
//
// The compiler's command line gives what differs between tasks: TOKENS, FEATURES (numbers a token comes with: the 16
// pixels of a patch, or the 32 of a word vector with its position added) and CLASSES; and, of the protocol,
// UPDATE_EPSILON, which is added to a root of second moments.
#pragma once
#include "machine.cuh"

constexpr int DIM = 32, HEADS = 2, HEAD_DIM = 16, HIDDEN = 64, BLOCKS = 2;
constexpr bool IMAGES = FEATURES != DIM;      // images have a trainable embedding, word vectors are read as they are
constexpr bool FULL_LENGTH = IMAGES;          // every image has all TOKENS; texts have lengths of their own

constexpr int TILE = 16;                      // token rows of one warp
constexpr int ROWS = 64;                      // token rows of a sample: TOKENS, padded to whole tiles
constexpr int GROUP_WARPS = ROWS / TILE;      // the four warps that share a sample
constexpr int WARP = 32;
constexpr int GROUP_THREADS = GROUP_WARPS * WARP;
static_assert(TOKENS <= ROWS && CLASSES <= TILE && (!IMAGES || FEATURES == 16), "dimensions the tiles are cut for");

constexpr float LAYER_NORM_EPSILON = 1e-5f;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
constexpr float SCORE_SCALE = 0.25f;                     // 1/√D_k
static_assert(SCORE_SCALE * SCORE_SCALE * HEAD_DIM == 1.0f, "of this D_k");
constexpr float SCORE_TO_POWER = SCORE_SCALE * LOG2_E;   // exp(score/√D_k) = 2^(score·this)

// ---- the flat vector (zoo.transformer.spec): offsets in floats ----------------------------------------------------------------
constexpr int EMBEDDING = 0, EMBEDDING_BIAS = DIM * FEATURES;
constexpr int FIRST_BLOCK = IMAGES ? EMBEDDING_BIAS + DIM : 0;
constexpr int QUERY = 0, KEY = QUERY + DIM * DIM, VALUE = KEY + DIM * DIM, OUTPUT = VALUE + DIM * DIM;
constexpr int FC1 = OUTPUT + DIM * DIM, FC1_BIAS = FC1 + HIDDEN * DIM;
constexpr int FC2 = FC1_BIAS + HIDDEN, FC2_BIAS = FC2 + DIM * HIDDEN;
constexpr int BLOCK_SIZE = FC2_BIAS + DIM;
constexpr int HEAD1 = FIRST_BLOCK + BLOCKS * BLOCK_SIZE, HEAD1_BIAS = HEAD1 + DIM * DIM;
constexpr int HEAD2 = HEAD1_BIAS + DIM, HEAD2_BIAS = HEAD2 + CLASSES * DIM;
constexpr int PARAMETERS = HEAD2_BIAS + CLASSES;

// ---- weights in shared memory: matrices as tiles of halves, biases as floats; offsets in bytes ---------------------
constexpr u32 HALF = 2, FLOAT = 4;
constexpr u32 SQUARE = DIM * DIM * HALF;                           // one 32×32 tile
constexpr u32 W_QUERY = 0, W_KEY = SQUARE, W_VALUE = 2 * SQUARE, W_OUTPUT = 3 * SQUARE;
constexpr u32 W_FC1 = 4 * SQUARE, W_FC2 = 6 * SQUARE, W_BLOCK = 8 * SQUARE;
constexpr u32 W_EMBEDDING = BLOCKS * W_BLOCK;
constexpr u32 W_HEAD1 = W_EMBEDDING + (IMAGES ? DIM * FEATURES * HALF : 0);
constexpr u32 W_HEAD2 = W_HEAD1 + SQUARE;                          // padded to 16 classes
constexpr u32 B_EMBEDDING = W_HEAD2 + TILE * DIM * HALF;
constexpr u32 B_FC1 = B_EMBEDDING + DIM * FLOAT, B_FC2 = B_FC1 + HIDDEN * FLOAT, B_BLOCK = (HIDDEN + DIM) * FLOAT;
constexpr u32 B_HEAD1 = B_FC1 + BLOCKS * B_BLOCK, B_HEAD2 = B_HEAD1 + DIM * FLOAT;
constexpr u32 WEIGHTS_END = B_HEAD2 + TILE * FLOAT;

// Where a thread stands: its group's warps hold 16 token rows each; a lane holds columns 8j + pair, 8j + pair + 1 of
// rows `row` and `row + 8` of its tile, as the matrix units have it.
struct Thread {
    int warp, lane, group, tile, row, pair;
    __device__ __forceinline__ Thread() {
        int index = thread_index();
        warp = index / WARP, lane = index % WARP;
        group = warp / GROUP_WARPS, tile = warp % GROUP_WARPS;
        row = lane / 4, pair = 2 * (lane % 4);
    }
};
