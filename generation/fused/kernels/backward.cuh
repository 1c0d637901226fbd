// The backward pass of one block for one sample, in two parts, each of which leaves factors of weight gradients. As in
// the forward pass each warp has its own rows. Scores are computed once more, transposed: a warp's rows are keys then,
// so that the sums over queries in dK and dV are its own; only ds passes through shared memory, one head at a time.
//
//     dy ─ ·W_B ─ ReLU' ─ d_hidden ─ ·W_A ─ LayerNorm' ─ dropout' ─ da                                (backward_mlp)
//     da ─ ·W_O ─ d_joined             p = 2^(score − log_sum)                                   (backward_attention)
//     ds = p ∘ (V·d_joinedᵀ − δ),      δ = Σ d_joined∘joined
//     dQ = ln 2·dsᵀ·K                  dK = ln 2·ds·Q        dV = p·d_joined    (they end in the places of Q, K and V)
//     dx = LayerNorm'(dQ·W_Q + dK·W_K + dV·W_V)            with Q and W_Q times QUERY_SCALE, as shared memory has them
//
// Each function asks anew where its thread stands: addresses that follow from it would crowd out the gradients, if the
// compiler kept them from one function to the next.
#pragma once
#include "forward.cuh"

// From dy to d_hidden, then to the gradient of the attention's output, in front of its dropout. A hidden layer that was
// not kept is computed again.
template <int MINE>
DEVICE void backward_mlp(
    int block, const BlockWeights& weights, const Sample& sample, const Parking& parking, BlockMemory& memory,
    PerTile<Rows<DIM>>& d
) {
    const Thread me;
    const bool kept = is_kept(block);
    PerTile<PackedRows<DIM>> dy, x2;
    if (kept) {
        load_rows<MINE>(me, x2, sample.x2(block));
    } else {
        parking.load<MINE>(me, block, memory);
        parking.load_rows<MINE>(me, block, Parking::X2, x2);
    }
    drop_backward<MINE>(d, memory.dropped, 16);
    pack_all<MINE>(dy, d);
    #pragma unroll
    for (int columns = 0; columns < HIDDEN; columns += TILE) {
        PerTile<PackedRows<TILE>> hidden, d_hidden;
        PerTile<Rows<TILE>> wide;
        if (kept) {
            #pragma unroll
            for (int i = 0; i < MINE; i++) load_tile(me, hidden[i][0], sample.hidden(block), i, columns / 8);
        } else {
            hidden_columns<MINE>(me, x2, weights, columns, hidden);
            #pragma unroll
            for (int i = 0; i < MINE; i++) store_tile(me, sample.hidden(block), hidden[i], i, columns / 8);
        }
        #pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            Factor b;
            weights.fc2().load_right(me, b, 16 * k, columns / 8);
            #pragma unroll
            for (int i = 0; i < MINE; i++) accumulate(k == 0, wide[i][0], wide[i][1], dy[i][k], b);
        }
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            pack_rows(d_hidden[i], wide[i]);
            // a half that is at least the smallest positive number, plus 0x7FFF, has its sign bit set; zero has not
            #pragma unroll
            for (int e = 0; e < 4; e++) d_hidden[i][0][e] &= spread_signs(hidden[i][0][e] + 0x7FFF7FFFu);
            store_tile(me, sample.d_hidden(), d_hidden[i], i, columns / 8);
        }
        #pragma unroll
        for (int j = 0; j < DIM / 8; j += 2) {
            Factor b;
            weights.fc1().load_right(me, b, columns, j);
            #pragma unroll
            for (int i = 0; i < MINE; i++) accumulate(columns == 0, d[i][j], d[i][j + 1], d_hidden[i][0], b);
        }
    }
    store_rows<MINE>(me, sample.dy(), dy);
    if (!kept) store_rows<MINE>(me, sample.x2(block), x2);
    normalize_backward<MINE>(d, x2, memory.r2);
    drop_backward<MINE>(d, memory.dropped, 0);
}

// δ = Σ over a head's columns of d_joined∘joined
DEVICE void weighted_sums(PerRow<float>& delta, const Factor& d_joined, const Factor& joined) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float a, b, c, d, sum = 0.0f;
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            unpack(a, b, d_joined[2 * side + half]);
            unpack(c, d, joined[2 * side + half]);
            sum += a * c + b * d;
        }
        delta[half] = row_sum(sum);
    }
}

// One head: probabilities and score gradients of the warp's rows as keys, and with them dk and dv. Rows of padding that
// stand for queries do no harm, since their d_joined and δ are zero.
template <class SomeTokens>
DEVICE void backward_scores(
    const SomeTokens& tokens, const Sample& sample, int head, PerTile<Rows<HEAD_DIM>>& dk, PerTile<Rows<HEAD_DIM>>& dv
) {
    const Thread me;
    constexpr int TILES = SomeTokens::TILES, MINE = SomeTokens::MINE;
    const Statistics statistics = {sample.start + Sample::STATISTICS};
    PerTile<Factor> keys, values;
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        load_tile(me, keys[i], sample.keys(), i, 2 * head);
        load_tile(me, values[i], sample.values(), i, 2 * head);
    }
    // Keys of padding are zeros, and so is x1 there: whatever p and ds are, nothing comes of it, as long as they are
    // numbers. Where ds is not, since p is infinite, it is cut out; only the warp's last tile can have padding.
    const PerRow<u32> numbers = {tokens.real[MINE - 1][0] ? ~0u : 0, tokens.real[MINE - 1][1] ? ~0u : 0};
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        Factor queries, d_joined, query_columns, d_joined_columns;
        Sums log_sum[2], delta[2];
        sample.queries().load_right_transposed(me, queries, tile * TILE, 2 * head);
        sample.d_joined().load_right_transposed(me, d_joined, tile * TILE, 2 * head);
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            statistics.load(me, log_sum[side], Statistics::LOG_SUM, head, 2 * tile + side);
            statistics.load(me, delta[side], Statistics::DELTA, head, 2 * tile + side);
        }
        sample.queries().load_right(me, query_columns, tile * TILE, 2 * head);
        sample.d_joined().load_right(me, d_joined_columns, tile * TILE, 2 * head);
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            PackedRows<TILE> p, ds;
            Rows<TILE> score, dp;
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                if (tile * TILE + 8 * side >= TOKENS) {
                    #pragma unroll
                    for (int e = 0; e < 4; e++) score[side][e] = dp[side][e] = 0.0f;
                    continue;
                }
                mma_from(score[side], keys[i], queries[2 * side], queries[2 * side + 1], log_sum[side]);
                mma_from(dp[side], values[i], d_joined[2 * side], d_joined[2 * side + 1], delta[side]);
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    score[side][e] = power_of_two(score[side][e]);
                    dp[side][e] = score[side][e] * dp[side][e];
                }
            }
            pack_rows(p, score);
            pack_rows(ds, dp);
            if (i == MINE - 1) {
                #pragma unroll
                for (int e = 0; e < 4; e++) ds[0][e] &= numbers[e % 2];
            }
            store_tile(me, sample.ds(), ds, i, 2 * tile);
            accumulate(tile == 0, dv[i][0], dv[i][1], p[0], d_joined_columns);
            accumulate(tile == 0, dk[i][0], dk[i][1], ds[0], query_columns);
        }
    }
}

// One head: gradients of the warp's rows as queries, gathered from all keys.
template <class SomeTokens>
DEVICE void backward_queries(
    const SomeTokens&, const Sample& sample, int head, PerTile<Rows<HEAD_DIM>>& dq
) {
    const Thread me;
    const u32 columns = TokenRows<ROWS>::across(me) ^ (32 * me.member);  // of ds: this warp's tokens as queries
    #pragma unroll
    for (int tile = 0; tile < SomeTokens::TILES; tile++) {
        Factor a, b;
        sample.keys().load_right(me, b, tile * TILE, 2 * head);
        #pragma unroll
        for (int i = 0; i < SomeTokens::MINE; i++) {
            load_matrices_transposed(a, sample.ds().at(columns, tile * TILE, 2 * i * GROUP_WARPS));
            accumulate(tile == 0, dq[i][0], dq[i][1], a, b);
        }
    }
}

template <int MINE>
DEVICE void pack_scaled(PerTile<PackedRows<DIM>>& a, int factor, const PerTile<Rows<TILE>>& rows, float scale) {
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            a[i][factor][e] = pack(left(rows[i][e / 2], e % 2) * scale, right(rows[i][e / 2], e % 2) * scale);
        }
    }
}

// From the gradient of the attention's output to d_joined, and δ of every query. Of blocks before the last,
// queries, keys and values are computed again.
template <int MINE>
DEVICE void prepare_attention(
    int block, const BlockWeights& weights, const Sample& sample, const Parking& parking, const PerTile<Rows<DIM>>& d,
    PerTile<PackedRows<DIM>>& da, PerTile<PackedRows<DIM>>& d_joined, PerTile<PerRow<float>> (&delta)[HEADS]
) {
    const Thread me;
    const bool kept = is_kept(block);
    PerTile<Rows<DIM>> c;
    PerTile<PackedRows<DIM>> joined;
    pack_all<MINE>(da, d);
    if (block != LAST_BLOCK) {
        PerTile<PackedRows<DIM>> x1;
        if (kept) load_rows<MINE>(me, x1, sample.x1(block));
        else parking.load_rows<MINE>(me, block, Parking::X1, x1);
        project<MINE>(me, x1, weights, d_joined, sample.keys(), sample.values());
        store_rows<MINE>(me, sample.queries(), d_joined);
        if (!kept) store_rows<MINE>(me, sample.x1(block), x1);
    }
    if (kept) load_rows<MINE>(me, joined, sample.joined(block));
    else parking.load_rows<MINE>(me, block, Parking::JOINED, joined);
    multiply<MINE>(me, c, da, weights.output());
    pack_all<MINE>(d_joined, c);
    if (!kept) store_rows<MINE>(me, sample.joined(block), joined);
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        #pragma unroll
        for (int head = 0; head < HEADS; head++) weighted_sums(delta[head][i], d_joined[i][head], joined[i][head]);
    }
}

// Writes what the warps of the group need of each other's rows, and what every query needs: −log_sum and −δ.
template <int MINE>
DEVICE void share_attention(
    const Sample& sample, const PerTile<PackedRows<DIM>>& da, const PerTile<PackedRows<DIM>>& d_joined,
    const PerTile<PerRow<float>> (&delta)[HEADS], const BlockMemory& memory
) {
    const Thread me;
    const Statistics statistics = {sample.start + Sample::STATISTICS};
    store_rows<MINE>(me, sample.da(), da);
    store_rows<MINE>(me, sample.d_joined(), d_joined);
    if (me.pair != 0) return;
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = me.tile(i) * TILE + me.row + 8 * half;
            #pragma unroll
            for (int head = 0; head < HEADS; head++) {
                statistics.store(Statistics::LOG_SUM, head, query, -memory.log_sum[head][i][half]);
                statistics.store(Statistics::DELTA, head, query, -delta[head][i][half]);
            }
        }
    }
}

// From there to the gradient of the block's input; leaves dQ, dK and dV for the weight gradients.
template <class SomeTokens>
DEVICE void backward_attention(
    int group, const SomeTokens& tokens, int block, const BlockWeights& weights, const Sample& sample,
    const BlockMemory& memory, PerTile<Rows<DIM>>& d
) {
    constexpr int MINE = SomeTokens::MINE;
    PerTile<PackedRows<DIM>> dq, dk, dv;
    group_barrier(group);  // the rows of all warps are there
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        PerTile<Rows<HEAD_DIM>> c, e;
        if (head) group_barrier(group);  // all have read the other head's ds
        if (tokens.busy) {
            backward_scores(tokens, sample, head, c, e);
            pack_scaled<MINE>(dk, head, c, LN_2);
            pack_scaled<MINE>(dv, head, e, 1.0f);
        }
        group_barrier(group);
        if (tokens.busy) {
            backward_queries(tokens, sample, head, c);
            pack_scaled<MINE>(dq, head, c, LN_2);
        }
    }
    group_barrier(group);  // all have read queries, keys and values
    if (!tokens.busy) return;
    const Thread me;
    PerTile<PackedRows<DIM>> x1;
    load_rows<MINE>(me, x1, sample.x1(block));
    multiply<MINE>(me, d, dq, weights.query());
    multiply<MINE, ADD>(me, d, dk, weights.key());
    multiply<MINE, ADD>(me, d, dv, weights.value());
    normalize_backward<MINE>(d, x1, memory.r1);
    store_rows<MINE>(me, sample.queries(), dq);
    store_rows<MINE>(me, sample.keys(), dk);
    store_rows<MINE>(me, sample.values(), dv);
}
