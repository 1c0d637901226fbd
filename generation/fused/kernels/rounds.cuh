// Training in rounds of two samples, or of one: each has four of eight warps (SAMPLES_AT_ONCE). After the backward pass of a
// block, or of one of its parts (TAKE_TURNS), all eight add the samples to their weight gradients; at the end of a step
// every warp updates the weights whose gradients it holds.
#pragma once

extern "C" __global__ void __launch_bounds__(TRAIN_THREADS, 1) train_epoch(const TrainArguments arguments) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const TrainMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const RecentSamples recent = memory.recent();
    const TokenSums sums = memory.sums(me.group);
    const InputBuffers inputs = memory.inputs(me.group);
    const bool works = GROUPS * GROUP_WARPS == WARPS || me.group < GROUPS;  // on a sample
    Sample sample = memory.sample(me.group);
    sample.parking = {arguments.parked + model * PARKED_WORDS};
    const Optimizer rule = optimizer_of(arguments, model);
    Dropout dropout;
    dropout.seed = arguments.seeds[model];
    dropout.threshold = arguments.thresholds[model];
    dropout.epsilon = arguments.epsilons[model];

    const Worker all_threads = {thread_index(), TRAIN_THREADS};
    int there = NO_BLOCK;  // the block whose weights are in shared memory, where blocks take turns
    load_weights(rule.weights, weights, all_threads);
    clear_inputs(memory);
    block_barrier();

    double losses[2 / GROUPS] = {};  // of even and odd samples apart, in every variant
    int buffer = 0;
    const int rounds = arguments.batch / GROUPS, total = arguments.steps * arguments.batch;
    // one round ahead, so that no warp waits for device memory
    if (works) start_tokens(me, arguments.sample(me.group), inputs[buffer]);
    u32 next_facts0 = arguments.facts[0], next_facts1 = arguments.facts[GROUPS - 1];
    Gradients gradients(arguments.parked + model * PARKED_WORDS + Parking::WORDS);
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        gradients.reset();
        dropout.step = arguments.first_step + step;
        #pragma unroll 1
        for (int round = 0; round < rounds; round++) {
            const Thread me;  // read again: else the addresses that follow from it are kept and crowd out the gradients
            const int next = (step * rounds + round + 1) * GROUPS;
            const Facts pair0(next_facts0), pair1(next_facts1), mine(me.group ? next_facts1 : next_facts0);
            const PerGroup<int> lengths = {pair0.length, pair1.length};
            const TokenRows<FEATURES> input = inputs[buffer];
            dropout.start_sample(me, mine.place);

            Rows<DIM> x;
            if (works) embed(me, x, weights, input, arguments.positions);
            buffer = 1 - buffer;
            if (next < total) {
                if (works) start_tokens(me, arguments.sample(next + me.group), inputs[buffer]);
                next_facts0 = arguments.facts[next];
                next_facts1 = arguments.facts[next + GROUPS - 1];
            }
            const u32 kept_first = works ? drop(me, x, dropout, 0) : 0;

            BlockMemory block_memory = {}, earlier;
            #pragma unroll 1
            for (int from = 0; from < BLOCKS; from += Weights::RESIDENT) {
                bring_block(rule.weights, weights, all_threads, from, there);
                if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                    #pragma unroll 1
                    for (int block = from; block < from + Weights::RESIDENT; block++) {
                        if (!GRADIENTS_WAIT) earlier = block_memory;
                        const BlockPlaces places = sample.places(block);
                        forward_block<true>(me, tokens, x, block, weights.block(block), places, dropout, block_memory);
                        if (GRADIENTS_WAIT && is_earlier(block)) put_memory(sample.parking, block, block_memory);
                    }
                    if (from + Weights::RESIDENT < BLOCKS) return;
                    const int row = (round * GROUPS + me.group) % RECENT;
                    losses[GROUPS == 1 && round % 2] +=
                        finish(me, tokens, weights, sums, recent, row, mine.label, dropout.epsilon, x);
                });
            }

            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                bring_block(rule.weights, weights, all_threads, block, there);
                if (GRADIENTS_WAIT && is_earlier(block) && works) get_memory(sample.parking, block, block_memory);
                if constexpr (TAKE_TURNS) {
                    if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                        backward_block<MLP>(me, tokens, block, weights.block(block), sample, block_memory, dropout, x);
                    });
                    block_barrier();
                    gradients.add_samples<MLP>(me, memory, block, round, lengths, 1 - buffer);
                    block_barrier();
                }
                constexpr Part rest = TAKE_TURNS ? ATTENTION : WHOLE;
                if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                    backward_block<rest>(me, tokens, block, weights.block(block), sample, block_memory, dropout, x);
                });
                if (!GRADIENTS_WAIT) block_memory = earlier;
                if (IMAGES && block == 0 && works) {
                    PackedRows<DIM> rows;
                    drop_others(x, kept_first);
                    pack_rows(rows, x);
                    store_rows(me, sample.d_embedded(), rows);
                }
                block_barrier();
                gradients.add_samples<rest>(me, memory, block, round, lengths, 1 - buffer);
                if (block == 0 && round % (RECENT / GROUPS) == RECENT / GROUPS - 1) {
                    gradients.add_classifier(me, recent, round < RECENT / GROUPS);
                }
                block_barrier();
            }
        }
        const Thread me;
        gradients.apply(me, rule.at_step(arguments.corrections + 2 * step), weights);
        there = NO_BLOCK;
        block_barrier();
    }
    // each group's first lane has the sums over its samples
    if (works && me.tile == 0 && me.lane == 0) {
        for (int i = 0; i < 2 / GROUPS; i++) store_double(sums.start + i * DOUBLE, losses[i]);
    }
    block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        for (int i = 0; i < 2; i++) sum += load_double(memory.sums(i % GROUPS).start + i / GROUPS * DOUBLE);
        arguments.losses[model] = sum / ((double)arguments.steps * arguments.batch);
    }
}
