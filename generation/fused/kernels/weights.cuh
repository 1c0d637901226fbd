// A model's weights in shared memory, matrices as halves and biases as floats, and how they get there: those of all
// blocks, or of the current one alone (ALL_WEIGHTS).
#pragma once
#include "matrices.cuh"

static_assert(FLAT_KEY == FLAT_QUERY + INNER * DIM && FLAT_VALUE == FLAT_KEY + INNER * DIM &&
              FLAT_OUTPUT == FLAT_VALUE + INNER * DIM && FLAT_FC1 == FLAT_OUTPUT + DIM * INNER,
              "query, key and value are one matrix of DIM columns; so are output and fc1 if output has as many");

struct Weights {
    static constexpr int RESIDENT = ALL_WEIGHTS ? BLOCKS : 1;  // blocks whose weights are in shared memory at a time
    // a block's matrices, from the start of the block
    static constexpr u32 KEY = Matrix<INNER, DIM>::BYTES, VALUE = 2 * KEY, OUTPUT = 3 * KEY;
    static constexpr u32 FC1 = OUTPUT + Matrix<DIM, INNER>::BYTES, FC2 = FC1 + Matrix<HIDDEN, DIM>::BYTES;
    static constexpr u32 BLOCK_MATRICES = FC2 + Matrix<DIM, HIDDEN>::BYTES;
    // the other matrices, and all biases; those of a further block lie BLOCK_BIASES later
    static constexpr u32 EMBEDDING = RESIDENT * BLOCK_MATRICES;
    static constexpr u32 CLASSIFIER1 = EMBEDDING + (IMAGES ? Matrix<DIM, FEATURES>::BYTES : 0);
    static constexpr u32 UNEMBEDDING = CLASSIFIER1;  // of a language model, instead of the classifier
    static constexpr u32 CLASSIFIER2 = CLASSIFIER1 + Matrix<CAUSAL ? VOCABULARY_TILES * TILE : DIM, DIM>::BYTES;
    static constexpr u32 EMBEDDING_BIAS = CLASSIFIER2 + (CAUSAL ? 0 : Matrix<TILE, DIM>::BYTES);
    static constexpr u32 FC1_BIAS = EMBEDDING_BIAS + DIM * FLOAT, FC2_BIAS = FC1_BIAS + HIDDEN * FLOAT;
    static constexpr u32 BLOCK_BIASES = (HIDDEN + DIM) * FLOAT;
    static constexpr u32 CLASSIFIER1_BIAS = FC1_BIAS + RESIDENT * BLOCK_BIASES;
    static constexpr u32 CLASSIFIER2_BIAS = CLASSIFIER1_BIAS + DIM * FLOAT;
    static constexpr u32 BYTES = (CLASSIFIER2_BIAS + TILE * FLOAT + 127) / 128 * 128;
    u32 start;

    struct Block {
        u32 matrices, biases;
        DEVICE Matrix<INNER, DIM> query() const { return {matrices, 0}; }
        DEVICE Matrix<INNER, DIM> key() const { return {matrices, KEY}; }
        DEVICE Matrix<INNER, DIM> value() const { return {matrices, VALUE}; }
        DEVICE Matrix<DIM, INNER> output() const { return {matrices, OUTPUT}; }
        DEVICE Matrix<HIDDEN, DIM> fc1() const { return {matrices, FC1}; }
        DEVICE Matrix<DIM, HIDDEN> fc2() const { return {matrices, FC2}; }
        DEVICE Biases<HIDDEN> fc1_bias() const { return {biases + FC1_BIAS}; }
        DEVICE Biases<DIM> fc2_bias() const { return {biases + FC2_BIAS}; }
        // query, key and value, one below the other; and output and fc1 below them, if output has as many columns
        DEVICE Matrix<3 * INNER, DIM> query_to_value() const { return {matrices, 0}; }
        DEVICE Matrix<4 * DIM + HIDDEN, DIM> query_to_fc1() const { return {matrices, 0}; }
    };

    DEVICE Block block(int b) const {
        const int place = ALL_WEIGHTS ? b : 0;
        return {start + place * BLOCK_MATRICES, start + place * BLOCK_BIASES};
    }
    DEVICE Matrix<DIM, FEATURES> embedding() const { return {start, EMBEDDING}; }
    DEVICE Matrix<TILE, DIM> unembedding(int tile) const {  // of 16 tokens; the last is padded with zeros
        return {start + tile * Matrix<TILE, DIM>::BYTES, UNEMBEDDING};
    }
    DEVICE Matrix<DIM, DIM> classifier1() const { return {start, CLASSIFIER1}; }
    DEVICE Matrix<TILE, DIM> classifier2() const { return {start, CLASSIFIER2}; }  // padded to 16 classes
    DEVICE Biases<DIM> embedding_bias() const { return {start + EMBEDDING_BIAS}; }
    DEVICE Biases<DIM> classifier1_bias() const { return {start + CLASSIFIER1_BIAS}; }
    DEVICE Biases<TILE> classifier2_bias() const { return {start + CLASSIFIER2_BIAS}; }
};

using BlockWeights = Weights::Block;

// ---- from the flat vector -------------------------------------------------------------------------------------------

// A thread's index among those that load the weights, and how many there are.
struct Loader {
    int index, count;
};

// Where numbers 2i and 2i + 1 of a matrix lie.
template <int M, int N> DEVICE u32 pair_at(Matrix<M, N> matrix, int i) {
    int row = 2 * i / N, column = 2 * i % N;
    return matrix.address() + chunk_at<N>(row, column / 8) + column % 8 * HALF;
}

// Where blocks take turns, warps wait for this, so each thread reads many numbers before it stores the first.
template <int M, int N>
DEVICE void load_matrix(const float* flat, Matrix<M, N> matrix, const Loader& loader, int rows = M) {
    if constexpr (ALL_WEIGHTS) {
        for (int i = loader.index; i < rows * N / 2; i += loader.count) {
            u32 address = pair_at(matrix, i);
            store_word(address, pack(flat[2 * i], flat[2 * i + 1]));
        }
    } else {
        const int pairs = rows * N / 2;
        constexpr int at_once = 16;
        #pragma unroll 1
        for (int first = loader.index; first < pairs; first += at_once * loader.count) {
            float a[at_once], b[at_once];
            #pragma unroll
            for (int k = 0; k < at_once; k++) {
                const int i = first + k * loader.count, real = i < pairs ? i : first;
                a[k] = flat[2 * real];
                b[k] = flat[2 * real + 1];
            }
            #pragma unroll
            for (int k = 0; k < at_once; k++) {
                const int i = first + k * loader.count;
                if (i < pairs) store_word(pair_at(matrix, i), pack(a[k], b[k]));
            }
        }
    }
}

// Sets the rows of a matrix from `first` on to zero.
template <int M, int N> DEVICE void clear_rows(Matrix<M, N> matrix, const Loader& loader, int first) {
    constexpr int row_words = PITCH<N> / FLOAT;
    for (int i = first * row_words + loader.index; i < M * row_words; i += loader.count) {
        store_word(matrix.address() + i * FLOAT, 0);
    }
}

template <int COUNT>
DEVICE void load_biases(const float* flat, Biases<COUNT> biases, const Loader& loader, int count = COUNT) {
    for (int i = loader.index; i < count; i += loader.count) store_float(biases.address + i * FLOAT, flat[i]);
}

DEVICE void load_block(const float* flat, Weights weights, const Loader& loader, int b) {
    const float* block_flat = flat + b * BLOCK_STRIDE;
    const BlockWeights block = weights.block(b);
    if constexpr (INNER == DIM) {
        load_matrix(block_flat + FLAT_QUERY, block.query_to_fc1(), loader);
    } else {
        load_matrix(block_flat + FLAT_QUERY, block.query_to_value(), loader);
        load_matrix(block_flat + FLAT_OUTPUT, block.output(), loader);
        load_matrix(block_flat + FLAT_FC1, block.fc1(), loader);
    }
    load_matrix(block_flat + FLAT_FC2, block.fc2(), loader);
    load_biases(block_flat + FLAT_FC1_BIAS, block.fc1_bias(), loader);
    load_biases(block_flat + FLAT_FC2_BIAS, block.fc2_bias(), loader);
}

// Where blocks take turns: loads the weights of block b unless they are resident. Called by the whole thread block.
constexpr int NO_BLOCK = -1;
DEVICE void make_resident(const float* flat, Weights weights, const Loader& loader, int b, int& resident) {
    if (ALL_WEIGHTS || resident == b) return;
    thread_block_barrier();  // all have read the previous block's
    load_block(flat, weights, loader, b);
    thread_block_barrier();
    resident = b;
}

// All weights of a model, except those of blocks that take turns; classes that do not exist get zeros.
DEVICE void load_weights(const float* flat, Weights weights, const Loader& loader) {
    for (int b = 0; ALL_WEIGHTS && b < BLOCKS; b++) load_block(flat, weights, loader, b);
    if (IMAGES) {
        load_matrix(flat + FLAT_EMBEDDING, weights.embedding(), loader);
        load_biases(flat + FLAT_EMBEDDING_BIAS, weights.embedding_bias(), loader);
    }
    if constexpr (CAUSAL) {
        const Matrix<VOCABULARY_TILES * TILE, DIM> unembedding = {weights.start, Weights::UNEMBEDDING};
        load_matrix(flat + FLAT_UNEMBEDDING, unembedding, loader, CLASSES);
        return clear_rows(unembedding, loader, CLASSES);
    }
    load_matrix(flat + FLAT_CLASSIFIER1, weights.classifier1(), loader);
    load_biases(flat + FLAT_CLASSIFIER1_BIAS, weights.classifier1_bias(), loader);
    load_matrix(flat + FLAT_CLASSIFIER2, weights.classifier2(), loader, CLASSES);
    clear_rows(weights.classifier2(), loader, CLASSES);
    load_biases(flat + FLAT_CLASSIFIER2_BIAS, weights.classifier2_bias(), loader, CLASSES);
    for (int i = CLASSES + loader.index; i < TILE; i += loader.count) {
        store_float(weights.classifier2_bias().address + i * FLOAT, 0.0f);
    }
}
