// What a step of a canvas needs besides the layers, computed in the graph: no logits and no embeddings leave the device.
//
// A packed row of a position has 6 + 2k numbers, of the distribution at the step's temperature T:
//   0 log z: log-sum-exp of the tempered logits, less the tempered best logit     1 entropy in nats
//   2 best id     3 id drawn from the whole vocabulary     4 best logit     5 logit of the drawn id
//   [6, 6 + k) the k best logits     [6 + k, 6 + 2k) their ids. DG_ROWS: the best first, DG_OPS: in no order; k may be 0
// Numbers are float32, ids too: they are exact below 2^24.

#pragma once

#include "models.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#if defined(_WIN32)
#define DG_API extern "C" __declspec(dllexport)
#else
#define DG_API extern "C" __attribute__((visibility("default")))
#endif

enum dg_mode {
    DG_OFF  = 0,  // llama.cpp copies the logits to the host
    DG_ROWS = 1,  // one function reduces a row at a time; on a CPU only
    DG_OPS  = 2,  // operations of ggml that every device has; only ggml's CPU device has run them
};

// DG_OPS: tensors of the caller on the device of the last layers. They are the self-conditioning network, and what it reads.
struct dg_device {
    ggml_tensor * table;     // transposed embeddings [n_vocab, n_embd]
    ggml_tensor * bias;      // [n_vocab], added to the logits: 0, or about -1e9 for a token never to be drawn
    ggml_tensor * pre_norm;  // [n_embd]
    ggml_tensor * gate_up;   // [n_embd, 2 n_inner]
    ggml_tensor * down;      // [n_inner, n_embd]
    ggml_tensor * memory;    // [n_embd, n]: scaled mean embeddings of earlier predictions; row 0 is zero: no prediction
    ggml_tensor * canvas;    // [1, n]: ids that the last step of a chain chose for the next one, at the rows of the memory
    ggml_tensor * history;   // [6, m]: packed rows of the steps of a chain
};

// DG_OPS: a step of one canvas that chooses the canvas of the next step, so that the host need not look between them.
struct dg_chain {
    int             is_first;  // the ids are those of the batch
    float           bound;     // nats: see `accept` in samplers.py
    const float   * frozen;    // 1 at positions that never change, else 0
    const float   * noise;     // ids for positions that are not accepted
    const int64_t * history;   // rows of the history for this step's packed rows
};

struct dg_settings {
    int           mode     = DG_OFF;
    int           k        = 0;
    const dg_device * device = nullptr;  // DG_OPS
    float         inv_t    = 1.0f;     // 1 / T
    const float * uniforms = nullptr;  // one for each row, in the order of the outputs
    int           n_rows   = 0;
    const int32_t * banned = nullptr;  // DG_ROWS: ids of tokens never to be drawn
    int           n_banned = 0;
    const int32_t * reads  = nullptr;  // DG_OPS: for each row, the row of the memory with its last prediction,
    const int64_t * writes = nullptr;  // and the row for this one
    const dg_chain * chain = nullptr;  // DG_OPS, with k = 0
};

enum dg_result { DG_PACKED = 0, DG_INPUT = 1, DG_LOGITS = 2, DG_HISTORY = 3, DG_RESULTS = 4 };

// of the thread that decodes: graphs are built and their inputs are set there
static thread_local dg_settings   dg_now;
static thread_local ggml_tensor * dg_results[DG_RESULTS] = {};  // of the graph that ran last

// ---- DG_ROWS ----

#define DG_BLOCK 256  // tokens whose maximum and sum are kept: most blocks are read only twice

#if defined(__GNUC__)  // vectors of GCC and clang: loops of plain C++ with an exponential are not vectorized

#define DG_LANES 8
typedef float   dg_floats __attribute__((vector_size(4*DG_LANES)));
typedef int32_t dg_ints   __attribute__((vector_size(4*DG_LANES)));

// exp of s <= 0 with an error of 2 ulp, after Cephes
#define DG_EXP(w, s) \
    dg_floats w; { \
        const dg_floats x_ = s > -87.0f ? s : dg_floats{} - 87.0f; \
        const dg_floats n_ = (x_*1.44269504088896341f + 12582912.0f) - 12582912.0f; \
        const dg_floats r_ = (x_ - n_*0.693359375f) + n_*2.12194440e-4f; \
        dg_floats p_ = r_*1.9875691500e-4f + 1.3981999507e-3f; \
        p_ = p_*r_ + 8.3334519073e-3f; \
        p_ = p_*r_ + 4.1665795894e-2f; \
        p_ = p_*r_ + 1.6666665459e-1f; \
        p_ = p_*r_ + 5.0000001201e-1f; \
        p_ = p_*r_*r_ + r_ + 1.0f; \
        w = p_*(dg_floats) ((__builtin_convertvector(n_, dg_ints) + 127) << 23); \
    }

// compiled twice, because the processor is known only when the library runs
#define DG_BLOCKS(name, attributes) \
attributes static float name##_max(const float * x, int n) { \
    dg_floats acc[4], v; \
    for (int j = 0; j < 4; ++j) acc[j] = dg_floats{} - INFINITY; \
    int i = 0; \
    for (; i + 4*DG_LANES <= n; i += 4*DG_LANES) { \
        for (int j = 0; j < 4; ++j) { \
            memcpy(&v, x + i + j*DG_LANES, sizeof(v)); \
            acc[j] = v > acc[j] ? v : acc[j]; \
        } \
    } \
    float best = -INFINITY; \
    for (int j = 0; j < 4; ++j) for (int l = 0; l < DG_LANES; ++l) best = std::max(best, acc[j][l]); \
    for (; i < n; ++i) best = std::max(best, x[i]); \
    return best; \
} \
 \
attributes static void name##_sums(const float * x, int n, float top, float inv_t, float * sum_w, float * sum_ws) { \
    dg_floats a[2] = {}, b[2] = {}, v; \
    int i = 0; \
    for (; i + 2*DG_LANES <= n; i += 2*DG_LANES) { \
        for (int j = 0; j < 2; ++j) { \
            memcpy(&v, x + i + j*DG_LANES, sizeof(v)); \
            const dg_floats s = (v - top)*inv_t; \
            DG_EXP(w, s); \
            a[j] += w; \
            b[j] += w*s; \
        } \
    } \
    float sw = 0, ss = 0; \
    for (int j = 0; j < 2; ++j) for (int l = 0; l < DG_LANES; ++l) { sw += a[j][l]; ss += b[j][l]; } \
    for (; i < n; ++i) { const float s = (x[i] - top)*inv_t, w = expf(s); sw += w; ss += w*s; } \
    *sum_w = sw; *sum_ws = ss; \
}

DG_BLOCKS(dg_plain, )
#if defined(__x86_64__)
DG_BLOCKS(dg_avx2, __attribute__((target("avx2,fma"))))
static const bool dg_is_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#define dg_block_max(...)  (dg_is_wide ? dg_avx2_max(__VA_ARGS__)  : dg_plain_max(__VA_ARGS__))
#define dg_block_sums(...) (dg_is_wide ? dg_avx2_sums(__VA_ARGS__) : dg_plain_sums(__VA_ARGS__))
#else
#define dg_block_max  dg_plain_max
#define dg_block_sums dg_plain_sums
#endif

#else

static float dg_block_max(const float * x, int n) { return *std::max_element(x, x + n); }

static void dg_block_sums(const float * x, int n, float top, float inv_t, float * sum_w, float * sum_ws) {
    float sw = 0, ss = 0;
    for (int i = 0; i < n; ++i) { const float s = (x[i] - top)*inv_t, w = expf(s); sw += w; ss += w*s; }
    *sum_w = sw; *sum_ws = ss;
}

#endif

static void dg_reduce_row(float * x, int n_vocab, const dg_settings & now, float uniform, float * out) {
    const int n_blocks = (n_vocab + DG_BLOCK - 1)/DG_BLOCK, k = now.k;
    const float inv_t = now.inv_t;
    static thread_local std::vector<float> maxima, order, sums;
    static thread_local std::vector<std::pair<float, int>> found;
    maxima.resize(n_blocks);
    sums.resize(n_blocks);
    for (int i = 0; i < now.n_banned; ++i) x[now.banned[i]] = -1e9f;
    float top = -INFINITY;
    for (int b = 0; b < n_blocks; ++b) {
        maxima[b] = dg_block_max(x + b*DG_BLOCK, std::min(DG_BLOCK, n_vocab - b*DG_BLOCK));
        top = std::max(top, maxima[b]);
    }
    double total = 0, moment = 0;
    for (int b = 0; b < n_blocks; ++b) {
        sums[b] = 0;
        if ((maxima[b] - top)*inv_t < -40.0f) continue;  // 262,144 * exp(-40) is 1e-12
        float w, ws;
        dg_block_sums(x + b*DG_BLOCK, std::min(DG_BLOCK, n_vocab - b*DG_BLOCK), top, inv_t, &w, &ws);
        sums[b] = w;
        total  += w;
        moment += ws;
    }
    // the k best tokens are in the k blocks with the best maxima, and none is below the k-th best maximum
    float least = -INFINITY;
    if (k <= n_blocks) {
        order.assign(maxima.begin(), maxima.end());
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
        least = order[k - 1];
    }
    found.clear();
    for (int b = 0; b < n_blocks; ++b) {
        if (maxima[b] < least) continue;
        const int end = std::min(n_vocab, (b + 1)*DG_BLOCK);
        for (int i = b*DG_BLOCK; i < end; ++i) if (x[i] >= least) found.emplace_back(x[i], i);
    }
    const int n_top = std::min<int>(k, found.size());
    std::partial_sort(found.begin(), found.begin() + n_top, found.end(), [](const auto & l, const auto & r) {
        return l.first != r.first ? l.first > r.first : l.second < r.second; });
    int drawn = n_top ? found[0].second : 0;
    double rest = uniform*total;
    int block = 0;
    while (block + 1 < n_blocks && rest >= sums[block]) rest -= sums[block++];
    for (int i = block*DG_BLOCK; i < std::min(n_vocab, (block + 1)*DG_BLOCK); ++i) {
        const float w = expf((x[i] - top)*inv_t);
        if (rest < w) { drawn = i; break; }
        rest -= w;
    }
    const double log_z = std::log(total);
    out[0] = (float) log_z;
    out[1] = (float) (log_z - moment/total);
    out[2] = n_top ? (float) found[0].second : 0.0f;
    out[3] = (float) drawn;
    out[4] = top;
    out[5] = x[drawn];
    for (int i = 0; i < k; ++i) {
        out[6 + i]     = i < n_top ? found[i].first : -1e9f;
        out[6 + k + i] = i < n_top ? (float) found[i].second : 0.0f;
    }
}

// ---- the graph ----

struct dg_reduction : public llm_graph_input_i {
    explicit dg_reduction(const dg_settings & made) : made(made) {}

    // Every graph has this input, also with the mode off: a graph of one mode must not run for another one. Temperature,
    // uniforms and rows of the memory are inputs.
    bool can_reuse(const llm_graph_params & params) override {
        if (dg_now.mode != made.mode) return false;
        return made.mode == DG_OFF || (dg_now.k == made.k && dg_now.device == made.device && !dg_now.chain == !made.chain &&
               results[DG_LOGITS]->ne[1] == (int64_t) params.n_outputs);
    }

    // runs before each computation of the graph, while the graph may have been built to reserve memory
    void set_input(const llama_ubatch *) override {
        std::copy_n(results, DG_RESULTS, dg_results);
        if (made.mode == DG_OFF) return;
        now = dg_now;
        draws.assign(results[DG_LOGITS]->ne[1], 0.5f);
        if (now.uniforms) std::copy_n(now.uniforms, std::min<int>(draws.size(), now.n_rows), draws.begin());
        if (!inv_t) return;
        ggml_backend_tensor_set(inv_t, &now.inv_t, 0, sizeof(float));
        ggml_backend_tensor_set(uniforms, draws.data(), 0, draws.size()*sizeof(float));
        ggml_backend_tensor_set(reads, now.reads, 0, ggml_nbytes(reads));
        ggml_backend_tensor_set(writes, now.writes, 0, ggml_nbytes(writes));
        if (!chained) return;
        const float scalars[2] = {now.chain->is_first ? 0.0f : 1.0f, now.chain->bound};
        ggml_backend_tensor_set(chained, &scalars[0], 0, sizeof(float));
        ggml_backend_tensor_set(bound, &scalars[1], 0, sizeof(float));
        ggml_backend_tensor_set(frozen, now.chain->frozen, 0, ggml_nbytes(frozen));
        ggml_backend_tensor_set(noise, now.chain->noise, 0, ggml_nbytes(noise));
        ggml_backend_tensor_set(kept, now.chain->history, 0, ggml_nbytes(kept));
    }

    dg_settings        made;
    dg_settings        now;                     // of the computation
    std::vector<float> draws;
    ggml_tensor *      inv_t    = nullptr;      // [1], DG_OPS
    ggml_tensor *      uniforms = nullptr;      // [1, n_outputs], DG_OPS
    ggml_tensor *      reads    = nullptr;      // [n_outputs], DG_OPS
    ggml_tensor *      writes   = nullptr;      // [n_outputs], DG_OPS
    ggml_tensor *      chained  = nullptr;      // [1], of a chain as the rest: 1 after the first step
    ggml_tensor *      bound    = nullptr;      // [1]
    ggml_tensor *      frozen   = nullptr;      // [1, n_outputs]
    ggml_tensor *      noise    = nullptr;      // [1, n_outputs]
    ggml_tensor *      kept     = nullptr;      // [n_outputs]: rows of the history
    ggml_tensor *      ids      = nullptr;      // [1, n_outputs], F32: the canvas of this step
    ggml_tensor *      results[DG_RESULTS] = {};
};

static void dg_reduce_rows(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto * in = (const dg_reduction *) userdata;
    const ggml_tensor * logits = dst->src[0];
    for (int64_t i = ith; i < logits->ne[1]; i += nth) {
        dg_reduce_row((float *) ((char *) logits->data + i*logits->nb[1]), (int) logits->ne[0], in->now, in->draws[i],
                      (float *) ((char *) dst->data + i*dst->nb[1]));
    }
}

// index of the first number of each row of `sums` up to which the row adds up to more than `wanted` [1, n]
static ggml_tensor * dg_pick(ggml_context * ctx, ggml_tensor * sums, ggml_tensor * wanted, ggml_tensor ** before) {
    ggml_tensor * below = ggml_step(ctx, ggml_neg(ctx, ggml_sub(ctx, ggml_cumsum(ctx, sums), wanted)));  // 1: less
    ggml_tensor * index = ggml_clamp(ctx, ggml_sum_rows(ctx, below), 0.0f, (float) (sums->ne[0] - 1));
    if (before) *before = ggml_sum_rows(ctx, ggml_mul(ctx, sums, below));
    return index;  // F32 [1, n]
}

// ids of the k best tokens, I32 [k, n]
static ggml_tensor * dg_top_ids(ggml_context * ctx, ggml_tensor * logits, int k) {
    const int64_t n_vocab = logits->ne[0], n = logits->ne[1], n_blocks = n_vocab/64;
    if (n_vocab % 64 || k > n_blocks) return ggml_cont(ctx, ggml_top_k(ctx, logits, k));
    // in two levels, since some devices sort whole rows: the k blocks with the best maxima, then the k best of those
    ggml_tensor * where  = ggml_reshape_2d(ctx, ggml_argmax(ctx, ggml_reshape_2d(ctx, logits, 64, n_blocks*n)), 1, n_blocks*n);
    ggml_tensor * maxima = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, 64, n_blocks*n), where);
    ggml_tensor * blocks = ggml_cont(ctx, ggml_top_k(ctx, ggml_reshape_2d(ctx, maxima, n_blocks, n), k));
    ggml_tensor * held   = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 64, n_blocks, n), blocks);      // [64, k, n]
    ggml_tensor * inner  = ggml_cont(ctx, ggml_top_k(ctx, ggml_reshape_2d(ctx, held, (int64_t) 64*k, n), k));
    ggml_tensor * at     = ggml_cast(ctx, inner, GGML_TYPE_F32);
    ggml_tensor * slot   = ggml_floor(ctx, ggml_scale(ctx, at, 1.0f/64));
    ggml_tensor * block  = ggml_get_rows(ctx, ggml_reshape_3d(ctx, ggml_cast(ctx, blocks, GGML_TYPE_F32), 1, k, n),
                                         ggml_cast(ctx, slot, GGML_TYPE_I32));
    ggml_tensor * id     = ggml_add(ctx, ggml_scale(ctx, ggml_reshape_2d(ctx, block, k, n), 64.0f),
                                    ggml_sub(ctx, at, ggml_scale(ctx, slot, 64.0f)));
    return ggml_cast(ctx, id, GGML_TYPE_I32);
}

// The ids of a canvas in a chain, F32 [1, n]: those of the batch in the first step, later those that the last step chose.
static ggml_tensor * dg_chained_ids(ggml_context * ctx, ggml_tensor * batch_ids, dg_reduction * in) {
    ggml_tensor * given  = ggml_cast(ctx, ggml_reshape_2d(ctx, batch_ids, 1, batch_ids->ne[0]), GGML_TYPE_F32);
    ggml_tensor * chosen = ggml_get_rows(ctx, in->made.device->canvas, in->reads);
    return ggml_add(ctx, given, ggml_mul(ctx, ggml_sub(ctx, chosen, given), in->chained));
}

// The canvas of the next step, F32 [1, n]: `accept` and `renoise` of samplers.py.
static ggml_tensor * dg_next_ids(ggml_context * ctx, ggml_tensor * entropy, ggml_tensor * drawn, dg_reduction * in) {
    const int64_t n = entropy->ne[1];
    ggml_tensor * is_free  = ggml_scale_bias(ctx, in->frozen, -1.0f, 1.0f);
    ggml_tensor * free     = ggml_mul(ctx, entropy, is_free);
    ggml_tensor * order    = ggml_argsort(ctx, ggml_reshape_1d(ctx, free, n), GGML_SORT_ORDER_ASC);
    ggml_tensor * sorted   = ggml_reshape_1d(ctx, ggml_get_rows(ctx, free, order), n);
    ggml_tensor * before   = ggml_sub(ctx, ggml_cumsum(ctx, sorted), sorted);
    ggml_tensor * refused  = ggml_step(ctx, ggml_sub(ctx, before, in->bound));
    ggml_tensor * rank     = ggml_argsort(ctx, ggml_cast(ctx, order, GGML_TYPE_F32), GGML_SORT_ORDER_ASC);
    ggml_tensor * is_noise = ggml_mul(ctx, ggml_get_rows(ctx, ggml_reshape_2d(ctx, refused, 1, n), rank), is_free);
    ggml_tensor * chosen   = ggml_add(ctx, drawn, ggml_mul(ctx, ggml_sub(ctx, in->noise, drawn), is_noise));
    return ggml_add(ctx, chosen, ggml_mul(ctx, ggml_sub(ctx, in->ids, chosen), in->frozen));
}

static ggml_tensor * dg_reduce_ops(ggml_context * ctx, ggml_tensor * logits, dg_reduction * in, std::vector<ggml_tensor *> & stored) {
    const int64_t n_vocab = logits->ne[0], n = logits->ne[1];
    const int k = in->made.k;
    in->inv_t    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, 1);
    in->uniforms = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, n);
    ggml_set_input(in->inv_t);
    ggml_set_input(in->uniforms);
    logits = ggml_add(ctx, logits, in->made.device->bias);
    ggml_tensor * columns = ggml_reshape_3d(ctx, logits, 1, n_vocab, n);
    auto row = [&](ggml_tensor * rows, ggml_tensor * ids) { return ggml_reshape_2d(ctx, ggml_get_rows(ctx, rows, ids), ids->ne[0], n); };
    ggml_tensor * best_id    = ggml_reshape_2d(ctx, ggml_argmax(ctx, logits), 1, n);
    ggml_tensor * best       = row(columns, best_id);
    ggml_tensor * tempered   = ggml_mul(ctx, logits, in->inv_t);
    ggml_tensor * p          = ggml_soft_max(ctx, tempered);
    ggml_tensor * p_best     = row(ggml_reshape_3d(ctx, p, 1, n_vocab, n), best_id);
    ggml_tensor * log_z      = ggml_neg(ctx, ggml_log(ctx, p_best));
    // entropy = log z - sum p (x - best)/T; the sum is a dot product for each row
    ggml_tensor * dot = ggml_mul_mat(ctx, ggml_reshape_3d(ctx, p, n_vocab, 1, n), ggml_reshape_3d(ctx, tempered, n_vocab, 1, n));
    ggml_prec_set_acc(dot, GGML_PREC_F32);
    ggml_tensor * entropy = ggml_sub(ctx, ggml_add(ctx, log_z, ggml_mul(ctx, best, in->inv_t)), ggml_reshape_2d(ctx, dot, 1, n));
    // the draw: a block of tokens by the sums of blocks, then a token of the block
    const int64_t size = n_vocab % 512 == 0 ? 512 : n_vocab % 64 == 0 ? 64 : n_vocab, n_blocks = n_vocab/size;
    ggml_tensor * blocks = ggml_reshape_3d(ctx, p, size, n_blocks, n);
    ggml_tensor * mass   = ggml_reshape_2d(ctx, ggml_sum_rows(ctx, blocks), n_blocks, n);
    ggml_tensor * wanted = ggml_mul(ctx, in->uniforms, ggml_sum_rows(ctx, mass));
    ggml_tensor * before = nullptr;
    ggml_tensor * block  = dg_pick(ctx, mass, wanted, &before);
    ggml_tensor * inside = ggml_reshape_2d(ctx, ggml_get_rows(ctx, blocks, ggml_cast(ctx, block, GGML_TYPE_I32)), size, n);
    ggml_tensor * drawn  = ggml_add(ctx, ggml_scale(ctx, block, (float) size),
                                    dg_pick(ctx, inside, ggml_sub(ctx, wanted, before), nullptr));
    ggml_tensor * packed = ggml_concat(ctx, log_z, entropy, 0);
    for (ggml_tensor * next : {ggml_cast(ctx, best_id, GGML_TYPE_F32), drawn, best,
                               row(columns, ggml_cast(ctx, drawn, GGML_TYPE_I32))}) {
        packed = ggml_concat(ctx, packed, next, 0);
    }
    if (k > 0) {
        ggml_tensor * top_ids = dg_top_ids(ctx, logits, k);
        packed = ggml_concat(ctx, packed, row(columns, top_ids), 0);
        packed = ggml_concat(ctx, packed, ggml_cast(ctx, top_ids, GGML_TYPE_F32), 0);
    }
    // probabilities relative to the best one: half precision, which products may use, has no number below 6e-8
    ggml_tensor * sums = ggml_mul_mat(ctx, in->made.device->table, ggml_div(ctx, p, p_best));
    ggml_prec_set_acc(sums, GGML_PREC_F32);
    ggml_tensor * means = ggml_mul(ctx, sums, ggml_scale(ctx, p_best, sqrtf((float) sums->ne[0])));
    stored.push_back(ggml_set_rows(ctx, in->made.device->memory, means, in->writes));
    if (in->chained) {
        // rounding can put the draw on a token without probability
        ggml_tensor * p_drawn = row(ggml_reshape_3d(ctx, p, 1, n_vocab, n), ggml_cast(ctx, drawn, GGML_TYPE_I32));
        ggml_tensor * argmax  = ggml_cast(ctx, best_id, GGML_TYPE_F32);
        ggml_tensor * kept    = ggml_add(ctx, argmax, ggml_mul(ctx, ggml_sub(ctx, drawn, argmax), ggml_step(ctx, p_drawn)));
        stored.push_back(ggml_set_rows(ctx, in->made.device->canvas, dg_next_ids(ctx, entropy, kept, in), in->writes));
        stored.push_back(ggml_set_rows(ctx, in->made.device->history, packed, in->kept));
        in->results[DG_HISTORY] = in->made.device->history;
    }
    return packed;
}

// The table to look token ids up in: that of the last layers if it is the same one and if its device can do it. Otherwise
// the host looks them up, and the embeddings are copied to the device.
static ggml_tensor * dg_embeddings(const llama_model & model, ggml_context * ctx) {
    ggml_tensor * table = model.output;
    if (dg_now.mode != DG_OPS || !table->buffer || strcmp(table->name, model.tok_embd->name) != 0) return model.tok_embd;
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(table->buffer));
    ggml_tensor * rows = ggml_get_rows(ctx, table, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1));
    return device && ggml_backend_dev_supports_op(device, rows) ? table : model.tok_embd;
}

// Adds what the memory has of the last predictions to the scaled embeddings of a canvas: the self-conditioning network.
static ggml_tensor * dg_condition(llm_graph_context & graph, const llama_model & model, ggml_tensor * embedded, dg_reduction * in) {
    ggml_context * ctx = graph.ctx0;
    const dg_device & device = *in->made.device;
    const float epsilon = graph.hparams.f_norm_rms_eps;
    in->reads  = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, graph.n_outputs);
    in->writes = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, graph.n_outputs);
    ggml_set_input(in->reads);
    ggml_set_input(in->writes);
    if (in->made.chain) {
        auto input = [&](ggml_type type, int64_t width, int64_t rows) {
            ggml_tensor * made = ggml_new_tensor_2d(ctx, type, width, rows);
            ggml_set_input(made);
            return made;
        };
        in->chained = input(GGML_TYPE_F32, 1, 1);
        in->bound   = input(GGML_TYPE_F32, 1, 1);
        in->frozen  = input(GGML_TYPE_F32, 1, graph.n_outputs);
        in->noise   = input(GGML_TYPE_F32, 1, graph.n_outputs);
        in->kept    = input(GGML_TYPE_I64, graph.n_outputs, 1);
        in->ids     = dg_chained_ids(ctx, graph.res->t_inp_tokens, in);
        ggml_tensor * ids = ggml_cast(ctx, ggml_reshape_1d(ctx, in->ids, graph.n_outputs), GGML_TYPE_I32);
        embedded = ggml_scale(ctx, ggml_get_rows(ctx, dg_embeddings(model, ctx), ids), sqrtf((float) embedded->ne[0]));
    }
    ggml_tensor * last    = ggml_get_rows(ctx, device.memory, in->reads);
    ggml_tensor * gate_up = ggml_mul_mat(ctx, device.gate_up, ggml_mul(ctx, ggml_rms_norm(ctx, last, epsilon), device.pre_norm));
    ggml_tensor * signal  = ggml_mul_mat(ctx, device.down, ggml_geglu(ctx, gate_up));
    ggml_prec_set_acc(gate_up, GGML_PREC_F32);
    ggml_prec_set_acc(signal, GGML_PREC_F32);
    return ggml_rms_norm(ctx, ggml_add(ctx, embedded, signal), epsilon);
}

// Begins the reduction, from the scaled embeddings of a canvas, which it changes with DG_OPS.
static dg_reduction * dg_begin(llm_graph_context & graph, const llama_model & model, ggml_tensor ** embedded) {
    auto * in = static_cast<dg_reduction *>(graph.res->add_input(std::make_unique<dg_reduction>(dg_now)));
    if (graph.n_outputs != (*embedded)->ne[1]) in->made.mode = DG_OFF;  // no canvas
    if (in->made.mode == DG_OPS) *embedded = dg_condition(graph, model, *embedded, in);
    if (in->made.mode != DG_OFF) ggml_set_output(in->results[DG_INPUT] = *embedded);
    return in;
}

// Adds the reduction to the graph of `llama_set_causal_attn(ctx, false)`. Returns the last tensor to compute.
static ggml_tensor * dg_reduce(llm_graph_context & graph, dg_reduction * in, ggml_tensor * logits) {
    if (in->made.mode == DG_OFF) {
        graph.res->t_logits = logits;
        return logits;
    }
    // without t_logits, llama.cpp copies none. They stay on the device: rows may be read from there
    ggml_set_output(logits);
    in->results[DG_LOGITS] = logits;
    ggml_tensor * packed;
    std::vector<ggml_tensor *> stored;
    if (in->made.mode == DG_ROWS) {
        packed = ggml_custom_4d(graph.ctx0, GGML_TYPE_F32, 6 + 2*in->made.k, logits->ne[1], 1, 1, &logits, 1, dg_reduce_rows,
                                GGML_N_TASKS_MAX, in);
    } else {
        packed = dg_reduce_ops(graph.ctx0, logits, in, stored);
    }
    in->results[DG_PACKED] = packed;
    ggml_set_output(packed);
    ggml_build_forward_expand(graph.gf, packed);
    for (ggml_tensor * each : stored) ggml_build_forward_expand(graph.gf, each);
    return packed;
}

// ---- functions for Python: of the calling thread ----

DG_API int dg_reduction_version(void) { return 3; }

// What the following graphs compute. The arrays must live until the next call, the device's tensors as long as the context.
DG_API void dg_reduction_set(int mode, int k, const dg_device * device, float inv_t, const float * uniforms, int n_rows,
                             const int32_t * banned, int n_banned, const int32_t * reads, const int64_t * writes,
                             const dg_chain * chain) {
    dg_now = {mode, k, device, inv_t, uniforms, n_rows, banned, n_banned, reads, writes, chain};
}

// Copies rows of a result of the last decode. Returns the number of rows: 0 if there are none, or if they have another width.
DG_API int dg_reduction_read(llama_context * ctx, int which, float * out, int first, int rows, int width) {
    llama_synchronize(ctx);
    const ggml_tensor * t = which >= 0 && which < DG_RESULTS ? dg_results[which] : nullptr;
    if (!t || !t->buffer || t->ne[0] != width || first < 0 || rows < 1 || first + (int64_t) rows > t->ne[1]) return 0;
    ggml_backend_tensor_get(t, out, first*t->nb[1], (size_t) rows*width*sizeof(float));
    return rows;
}
