// The backward pass of one block for one sample, in two parts, each of which leaves factors of weight gradients. As in
// the forward pass each warp has its own rows; but the gradients of keys and values are sums over all queries, so
// probabilities p and score gradients ds pass through shared memory, one head at a time.
//
//     dy ─ ·W_B ─ ReLU' ─ d_hidden ─ ·W_A ─ LayerNorm' ─ dropout' ─ da                                (backward_mlp)
//     da ─ ·W_O ─ d_joined                                                                       (backward_attention)
//     p = 2^(score − log_sum)      ds = p ∘ (d_joined·Vᵀ − δ),  δ = Σ d_joined∘joined
//     dQ = ln 2·ds·K               dK = ln 2·dsᵀ·Q        dV = pᵀ·d_joined    (they end in the places of Q, K and V)
//     dx = LayerNorm'(dQ·W_Q + dK·W_K + dV·W_V)           with Q and W_Q times QUERY_SCALE, as shared memory has them
#pragma once
#include "forward.cuh"

// From dy to d_hidden, then to the gradient of the attention's output, in front of its dropout. A hidden layer that was
// not kept is computed again.
template <int MINE>
DEVICE void backward_mlp(
    const Thread& me, int block, const BlockWeights& weights, const Sample& sample, const Parking& parking,
    BlockMemory& memory, PerTile<Rows<DIM>>& d
) {
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

// One head: probabilities and score gradients of the warp's rows as queries, and with them dq. Sums of products start
// from −log_sum and −δ.
template <class SomeTokens>
DEVICE void backward_scores(
    const Thread& me, const SomeTokens& tokens, const Sample& sample, int head,
    const PerTile<PackedRows<DIM>>& query, const PerTile<PackedRows<DIM>>& d_joined,
    const PerTile<PerRow<float>>& log_sum, const PerTile<PerRow<float>>& delta, PerTile<Rows<HEAD_DIM>>& dq
) {
    constexpr int TILES = SomeTokens::TILES, MINE = SomeTokens::MINE;
    Factor keys, values, key_columns;
    sample.keys().load_right_transposed(me, keys, 0, 2 * head);
    sample.values().load_right_transposed(me, values, 0, 2 * head);
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        PerTile<Rows<TILE>> score, dp;
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const Sums first_score = {-log_sum[i][0], -log_sum[i][0], -log_sum[i][1], -log_sum[i][1]};
            const Sums first_dp = {-delta[i][0], -delta[i][0], -delta[i][1], -delta[i][1]};
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                if (tile * TILE + 8 * side >= TOKENS) continue;
                mma_from(score[i][side], query[i][head], keys[2 * side], keys[2 * side + 1], first_score);
                mma_from(dp[i][side], d_joined[i][head], values[2 * side], values[2 * side + 1], first_dp);
            }
        }
        sample.keys().load_right(me, key_columns, tile * TILE, 2 * head);
        if (tile + 1 < TILES) {  // early, so that the next products need not wait for them
            sample.keys().load_right_transposed(me, keys, (tile + 1) * TILE, 2 * head);
            sample.values().load_right_transposed(me, values, (tile + 1) * TILE, 2 * head);
        }
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            PackedRows<TILE> p, ds;
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                if (tile * TILE + 8 * side >= TOKENS) {
                    clear(score[i][side]);
                    clear(dp[i][side]);
                    continue;
                }
                hide_padding(me, tokens, score[i][side], tile * TILE + 8 * side);
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    score[i][side][e] = power_of_two(score[i][side][e]);
                    dp[i][side][e] *= score[i][side][e];
                }
            }
            pack_rows(p, score[i]);
            pack_rows(ds, dp[i]);
            store_tile(me, sample.p(), p, i, 2 * tile);
            store_tile(me, sample.ds(), ds, i, 2 * tile);
            accumulate(tile == 0, dq[i][0], dq[i][1], ds[0], key_columns);
        }
    }
}

// One head: gradients of the warp's rows as keys and values, gathered from all queries.
template <class SomeTokens>
DEVICE void backward_keys(
    const Thread& me, const SomeTokens&, const Sample& sample, int head, PerTile<Rows<HEAD_DIM>>& dk,
    PerTile<Rows<HEAD_DIM>>& dv
) {
    const u32 columns = TokenRows<ROWS>::across(me) ^ (32 * me.member);  // of p and ds: this warp's tokens as keys
    #pragma unroll
    for (int tile = 0; tile < SomeTokens::TILES; tile++) {
        Factor a, b, c;
        sample.d_joined().load_right(me, b, tile * TILE, 2 * head);
        sample.queries().load_right(me, c, tile * TILE, 2 * head);
        #pragma unroll
        for (int i = 0; i < SomeTokens::MINE; i++) {
            load_matrices_transposed(a, sample.p().at(columns, tile * TILE, 2 * i * GROUP_WARPS));
            accumulate(tile == 0, dv[i][0], dv[i][1], a, b);
            load_matrices_transposed(a, sample.ds().at(columns, tile * TILE, 2 * i * GROUP_WARPS));
            accumulate(tile == 0, dk[i][0], dk[i][1], a, c);
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

// From the gradient of the attention's output to d_joined, and δ of every query. Of blocks before the last, queries, keys
// and values are computed again.
template <int MINE>
DEVICE void prepare_attention(
    const Thread& me, int block, const BlockWeights& weights, const Sample& sample, const Parking& parking,
    const PerTile<Rows<DIM>>& d, PerTile<PackedRows<DIM>>& query, PerTile<PackedRows<DIM>>& da,
    PerTile<PackedRows<DIM>>& d_joined, PerTile<PerRow<float>> (&delta)[HEADS]
) {
    const bool kept = is_kept(block);
    PerTile<Rows<DIM>> c;
    PerTile<PackedRows<DIM>> joined;
    pack_all<MINE>(da, d);
    if (block == LAST_BLOCK) {
        load_rows<MINE>(me, query, sample.queries());
    } else {
        PerTile<PackedRows<DIM>> x1;
        if (kept) load_rows<MINE>(me, x1, sample.x1(block));
        else parking.load_rows<MINE>(me, block, Parking::X1, x1);
        project<MINE>(me, x1, weights, query, sample.keys(), sample.values());
        store_rows<MINE>(me, sample.queries(), query);
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

// From there to the gradient of the block's input; leaves dQ, dK and dV for the weight gradients.
template <class SomeTokens>
DEVICE void backward_attention(
    const Thread& me, const SomeTokens& tokens, int block, const BlockWeights& weights, const Sample& sample,
    const BlockMemory& memory, const PerTile<PackedRows<DIM>>& query, const PerTile<PackedRows<DIM>>& d_joined,
    const PerTile<PerRow<float>> (&delta)[HEADS], PerTile<Rows<DIM>>& d
) {
    constexpr int MINE = SomeTokens::MINE;
    PerTile<PackedRows<DIM>> dq, dk, dv;
    if (block != LAST_BLOCK) group_barrier(me.group);  // the new keys and values are there
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        PerTile<Rows<HEAD_DIM>> c, e;
        if (head) group_barrier(me.group);  // all have read the other head's p and ds
        if (tokens.busy) {
            backward_scores(me, tokens, sample, head, query, d_joined, memory.log_sum[head], delta[head], c);
            pack_scaled<MINE>(dq, head, c, LN_2);
        }
        group_barrier(me.group);
        if (tokens.busy) {
            backward_keys(me, tokens, sample, head, c, e);
            pack_scaled<MINE>(dk, head, c, LN_2);
            pack_scaled<MINE>(dv, head, e, 1.0f);
        }
    }
    group_barrier(me.group);  // all have read queries, keys and values
    if (!tokens.busy) return;
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
