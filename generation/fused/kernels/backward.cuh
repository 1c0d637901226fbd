// The backward pass of one block for one example. As in the forward pass, each warp has its own rows; but the
// gradients of keys and values are sums over all queries, so probabilities p and score gradients ds pass through shared
// memory, one head at a time.
//
//     dy ─ ·W_B ─ ReLU' ─ d_hidden ─ ·W_A ─ LayerNorm' ─ dropout' ─ da ─ ·W_O ─ d_joined
//     p = 2^(score − log_sum)      ds = p ∘ (d_joined·Vᵀ − δ),  δ = Σ d_joined∘joined
//     dQ = ds·K/√D_k               dK = dsᵀ·Q/√D_k        dV = pᵀ·d_joined    (they overwrite Q, K and V)
//     dx = LayerNorm'(dQ·W_Q + dK·W_K + dV·W_V)
//
// With residual connections (RESIDUAL) the gradient of the stream is added to after each LayerNorm' (stream.cuh).
#pragma once
#include "forward.cuh"

// From dy to d_hidden, then to the gradient of the attention's output, before its dropout; with RESIDUAL to that of the
// stream after attention.
DEVICE void backward_mlp(
    const Thread& me, int block, const BlockWeights& weights, const Example& example, const BlockRows& kept,
    const BlockMemory& memory, const Dropout& dropout, Rows<DIM>& d
) {
    PackedRows<DIM> rows;
    PackedRows<HIDDEN> hidden, d_hidden;
    Rows<HIDDEN> wide;
    Rows<DIM> stream;
    if constexpr (RESIDUAL) copy_rows(stream, d);
    drop_in_block_backward(d, dropout, block, 1, memory);
    pack_rows(rows, d);
    store_rows(me, example.dy(), rows);
    multiply(me, wide, rows, weights.fc2());
    pack_rows(d_hidden, wide);
    if (WARP_SPECIALIZED && !is_earlier(block)) load_rows(me, hidden, kept.hidden());
    else example.spill_buffer.reload(SpillBuffer::hidden(block), hidden);
    #pragma unroll
    for (int k = 0; k < HIDDEN / 16; k++) {
        // a half that is at least the smallest positive number, plus 0x7FFF, has its sign bit set; zero does not
        #pragma unroll
        for (int i = 0; i < 4; i++) d_hidden[k][i] &= spread_signs(hidden[k][i] + 0x7FFF7FFFu);
    }
    if (TAKE_TURNS || (WARP_SPECIALIZED && is_earlier(block))) store_rows(me, kept.hidden(), hidden);
    if (TAKE_TURNS || WARP_SPECIALIZED) store_rows(me, example.d_hidden(), d_hidden);
    else example.spill_buffer.spill(SpillBuffer::D_HIDDEN, d_hidden);
    if (WARP_SPECIALIZED) arrive(MLP_FULL + me.group);
    multiply(me, d, d_hidden, weights.fc1());
    load_rows(me, rows, kept.x2());
    normalize_backward(d, rows, memory.r2);
    if constexpr (RESIDUAL) add_rows(d, stream);
    else drop_in_block_backward(d, dropout, block, 0, memory);
}

// δ = Σ over a head's columns of d_joined∘joined
DEVICE void weighted_sums(
    PerRow<float>& delta, const PackedRows<INNER>& d_joined, const PackedRows<INNER>& joined, int head
) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float a, b, c, d, sum = 0.0f;
        #pragma unroll
        for (int j = 2 * HEAD_TILES * head; j < 2 * HEAD_TILES * (head + 1); j++) {
            unpack(a, b, pair(d_joined, j, half));
            unpack(c, d, pair(joined, j, half));
            sum += a * c + b * d;
        }
        delta[half] = row_sum(sum);
    }
}

// One head: probabilities and score gradients of the warp's rows as queries, and with them dq. Tiles of keys are in the
// order of key_tile, which is written out here: as a call it would give the paper's texts different machine code.
template <int TILES>
DEVICE void backward_scores(
    const Thread& me, const Tokens<TILES>& tokens, const Example& example, int head, const PackedRows<INNER>& query,
    const PackedRows<INNER>& d_joined, const PerRow<float>& log_sum, const PerRow<float>& delta, Rows<HEAD_DIM>& dq
) {
    const int first = head * HEAD_TILES;  // of the head's tiles of columns
    Factor keys[HEAD_TILES], values[HEAD_TILES], key_columns[HEAD_TILES];
    #pragma unroll
    for (int k = 0; k < HEAD_TILES; k++) {
        tokens.of(example.keys()).load_right_transposed(me, keys[k], CAUSAL ? me.tile * TILE : 0, 2 * (first + k));
        tokens.of(example.values()).load_right_transposed(me, values[k], CAUSAL ? me.tile * TILE : 0, 2 * (first + k));
    }
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (is_hidden(me.tile, tile)) break;
        PackedRows<TILE> p, ds;
        Rows<TILE> score, dp;
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) {
            accumulate(k == 0, score[0], score[1], query[first + k], keys[k]);
            accumulate(k == 0, dp[0], dp[1], d_joined[first + k], values[k]);
            tokens.of(example.keys()).load_right(
                me, key_columns[k], (CAUSAL ? me.tile - tile : tile) * TILE, 2 * (first + k));
            // early, so that the next products need not wait for them
            if (tile + 1 < TILES && !is_hidden(me.tile, tile + 1)) {
                tokens.of(example.keys()).load_right_transposed(
                    me, keys[k], (CAUSAL ? me.tile - (tile + 1) : tile + 1) * TILE, 2 * (first + k));
                tokens.of(example.values()).load_right_transposed(
                    me, values[k], (CAUSAL ? me.tile - (tile + 1) : tile + 1) * TILE, 2 * (first + k));
            }
        }
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            if (tile * TILE + 8 * side >= KEY_COLUMNS) {
                #pragma unroll
                for (int i = 0; i < 4; i++) score[side][i] = dp[side][i] = 0.0f;
                continue;
            }
            hide_padding(me, tokens, score[side], tile * TILE + 8 * side);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                score[side][i] = power_of_two(score[side][i] * SCORE_TO_POWER - log_sum[i / 2]);
                dp[side][i] = score[side][i] * (dp[side][i] - delta[i / 2]);
            }
        }
        pack_rows(p, score);
        pack_rows(ds, dp);
        store_rows(me, example.p(), p, 2 * (CAUSAL ? me.tile - tile : tile));
        store_rows(me, example.ds(), ds, 2 * (CAUSAL ? me.tile - tile : tile));
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) accumulate(tile == 0, dq[2 * k], dq[2 * k + 1], ds[0], key_columns[k]);
    }
}

// One head: gradients of the warp's rows as keys and values, gathered from all queries.
template <int TILES>
DEVICE void backward_keys(
    const Thread& me, const Tokens<TILES>& tokens, const Example& example, int head, Rows<HEAD_DIM>& dk,
    Rows<HEAD_DIM>& dv
) {
    // columns of p and ds: this warp's tokens as keys
    const u32 columns = TokenRows<ROWS>::across(me) ^ (32 * (me.tile - tokens.first_tile));
    if constexpr (CAUSAL) {
        clear(dk);
        clear(dv);
    }
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (is_hidden(tile, me.tile)) continue;
        Factor a, b;
        ldmatrix_transposed(a, tokens.of(example.p()).at(columns, tile * TILE, 0));
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) {
            tokens.of(example.d_joined()).load_right(me, b, tile * TILE, 2 * (head * HEAD_TILES + k));
            accumulate(!CAUSAL && tile == 0, dv[2 * k], dv[2 * k + 1], a, b);
        }
        ldmatrix_transposed(a, tokens.of(example.ds()).at(columns, tile * TILE, 0));
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) {
            tokens.of(example.queries()).load_right(me, b, tile * TILE, 2 * (head * HEAD_TILES + k));
            accumulate(!CAUSAL && tile == 0, dk[2 * k], dk[2 * k + 1], a, b);
        }
    }
}

// Stores a head's columns as halves, among the columns of all heads.
DEVICE void pack_scaled(PackedRows<INNER>& a, int head, const Rows<HEAD_DIM>& rows, float scale) {
    #pragma unroll
    for (int i = 0; i < 4 * HEAD_TILES; i++) {
        a[head * HEAD_TILES + i / 4][i % 4] = pack(left(rows[i / 2], i % 2) * scale, right(rows[i / 2], i % 2) * scale);
    }
}

// A warp without tokens only arrives at the barriers of the backward pass. It has code of its own, since in the others'
// code the compiler would keep registers for numbers that it never has.
template <Part PART> DEVICE void stand_by(int group, int block) {
    if (WARP_SPECIALIZED && PART == MLP) arrive(MLP_FULL + group);
    if (PART == MLP) return;
    if (WARP_SPECIALIZED) wait(MLP_EMPTY + group);
    else if (is_earlier(block)) group_barrier(group);
    #pragma unroll 1
    for (int i = 0; i < 2 * HEADS; i++) group_barrier(group);
    if (WARP_SPECIALIZED) arrive(ATTENTION_FULL + group);
}

// From the gradient of a block's output to that of its input, in place; leaves the rows that the weight gradients need.
// Where parts take turns, the MLP goes first, and its rows are used before the attention follows. If WARP_SPECIALIZED,
// producers arrive at a part's barrier as soon as its rows are complete; the last part includes the embedding.
template <Part PART, int TILES>
DEVICE void backward_block(
    const Thread& me, const Tokens<TILES>& tokens, int block, const BlockWeights& weights, const Example& example,
    const BlockMemory& memory, const Dropout& dropout, Rows<DIM>& d
) {
    const BlockRows kept = example.kept();
    PackedRows<DIM> rows;
    PackedRows<INNER> query, joined, d_joined, dq, dk, dv;
    PerRow<float> delta[HEADS];
    const bool last = LEARNS_EMBEDDING && block == 0;
    const bool after_logits = CAUSAL && !is_earlier(block);  // da and d_joined will lie where their rows were
    if (!tokens.busy) return stand_by<PART>(me.group, block);
    if (is_earlier(block)) {
        if (PART != MLP) {
            example.spill_buffer.reload(me, SpillBuffer::rows(block, SpillBuffer::X1), kept.x1());
            example.spill_buffer.reload(me, SpillBuffer::rows(block, SpillBuffer::JOINED), kept.joined());
        }
        if (PART != ATTENTION) example.spill_buffer.reload(me, SpillBuffer::rows(block, SpillBuffer::X2), kept.x2());
        warp_barrier();
    }
    if (PART == MLP) return backward_mlp(me, block, weights, example, kept, memory, dropout, d);
    if (is_earlier(block)) {
        // only the last block's queries, keys and values are still there
        load_rows(me, rows, kept.x1());
        project(me, rows, weights, query, example.keys(), example.values());
        store_rows(me, example.queries(), query);
    } else {
        load_rows(me, query, example.queries());
    }
    if (PART == WHOLE) backward_mlp(me, block, weights, example, kept, memory, dropout, d);
    Rows<DIM> stream;
    if constexpr (RESIDUAL) {
        copy_rows(stream, d);
        drop_in_block_backward(d, dropout, block, 0, memory);
    }
    if (WARP_SPECIALIZED && after_logits) wait(MLP_EMPTY + me.group);
    pack_rows(rows, d);
    store_rows(me, example.da(), rows);
    Rows<INNER> d_wide;
    multiply(me, d_wide, rows, weights.output());
    pack_rows(d_joined, d_wide);
    store_rows(me, example.d_joined(), d_joined);
    load_rows(me, joined, kept.joined());
    #pragma unroll
    for (int head = 0; head < HEADS; head++) weighted_sums(delta[head], d_joined, joined, head);
    if (WARP_SPECIALIZED && !after_logits) wait(MLP_EMPTY + me.group);  // p and ds overwrite d_hidden and hidden
    else if (!WARP_SPECIALIZED && is_earlier(block)) group_barrier(me.group);  // all new keys and values are written
    if constexpr (RESIDUAL) example.d_stream().spill(me, stream);
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        Rows<HEAD_DIM> c, e;
        if (head) group_barrier(me.group);  // all have read the other head's p and ds
        backward_scores(me, tokens, example, head, query, d_joined, memory.log_sum[head], delta[head], c);
        pack_scaled(dq, head, c, SCORE_SCALE);
        group_barrier(me.group);
        backward_keys(me, tokens, example, head, c, e);
        pack_scaled(dk, head, c, SCORE_SCALE);
        pack_scaled(dv, head, e, 1.0f);
    }
    group_barrier(me.group);  // all have read queries, keys and values
    if (PART == WHOLE) {  // p and ds have been read too
        example.spill_buffer.reload(me, SpillBuffer::hidden(block), kept.hidden());
        example.spill_buffer.reload(me, SpillBuffer::D_HIDDEN, example.d_hidden());
    }
    store_rows(me, example.queries(), dq);
    store_rows(me, example.keys(), dk);
    store_rows(me, example.values(), dv);
    if (WARP_SPECIALIZED && !last) arrive(ATTENTION_FULL + me.group);
    multiply(me, d, dq, weights.query());
    multiply<ADD>(me, d, dk, weights.key());
    multiply<ADD>(me, d, dv, weights.value());
    load_rows(me, rows, kept.x1());
    normalize_backward(d, rows, memory.r1);
    if constexpr (RESIDUAL) {
        example.d_stream().reload(me, stream);
        add_rows(d, stream);
    }
}
