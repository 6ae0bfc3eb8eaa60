// A step's attention, divided into items: which query rows meet which keys. All layers of a KV group share it.
#include <algorithm>
#include <numeric>

#include "octavo/executable.h"

namespace octavo {
namespace {

std::int32_t spans_of(std::int64_t keys) { return static_cast<std::int32_t>((keys + kSpanKeys - 1) / kSpanKeys); }

}  // namespace

// Tiles of query rows per KV head, longest first; a tile whose cost exceeds a thread's share is split by spans. Which
// way is free: partials fold in the order of spans whoever made them.
void Executable::build_plan(AttendPlan& plan, std::int64_t num_seqs) {
    plan.items.clear();
    plan.cost.clear();
    plan.splits.clear();
    plan.shared.clear();
    plan.spans_saved = 0;
    const auto heads = static_cast<std::int32_t>(kv_[static_cast<std::size_t>(plan.group)].kv_heads);
    const std::int32_t tile = std::max(1, kItemRows / plan.heads_per_kv);
    plan.window = static_cast<std::int32_t>(kv_[static_cast<std::size_t>(plan.group)].window);
    plan.done.assign(static_cast<std::size_t>(num_seqs), 0);
    std::int64_t partial_rows = 0;
    share_prefixes(plan, num_seqs, partial_rows);
    double total = 0;
    for (std::int64_t b = 0; b < num_seqs; b++) {
        const auto i = static_cast<std::size_t>(b);
        total += tile_cost(plan, std::int64_t{inputs_.count[i]} * plan.heads_per_kv * heads, inputs_.start[i],
                           inputs_.count[i]);
    }
    const double limit = total / (3.0 * team_->threads());
    std::int32_t token = 0;
    for (std::int64_t b = 0; b < num_seqs; b++) {
        const std::int32_t count = inputs_.count[static_cast<std::size_t>(b)],
                           start = inputs_.start[static_cast<std::size_t>(b)];
        for (std::int32_t first = 0; first < count && !plan.done[static_cast<std::size_t>(b)]; first += tile) {
            const std::int32_t tokens = std::min(tile, count - first);
            for (std::int32_t h = 0; h < heads; h++) {
                const std::int32_t position = start + first, seen = first_seen(plan.window, position) / kSpanKeys;
                add_tile(plan,
                         {static_cast<std::int32_t>(b), token + first, tokens, position, h, seen,
                          spans_of(position + tokens), -1, 0},
                         limit, partial_rows);
            }
        }
        token += count;
    }
    plan.order.resize(plan.items.size());
    std::iota(plan.order.begin(), plan.order.end(), 0u);
    const auto [low, high] = std::minmax_element(plan.cost.begin(), plan.cost.end());
    if (*high > 1.2 * *low)
        std::stable_sort(plan.order.begin(), plan.order.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return plan.cost[a] > plan.cost[b]; });
    if (!plan.pending) {
        plan.pending = std::make_unique<std::atomic<std::int32_t>[]>(static_cast<std::size_t>(max_partial_rows_));
    }
    for (std::size_t i = 0; i < plan.splits.size(); i++)
        plan.pending[i].store(plan.splits[i].parts, std::memory_order_relaxed);
}

// Sequences that decode and whose tables begin with the same blocks: one item for all of them reads those keys once a
// step. Whole spans only, since a partial is one of a span; which rows an item has changes no bit of them.
void Executable::share_prefixes(AttendPlan& plan, std::int64_t num_seqs, std::int64_t& partial_rows) {
    if (plan.window > 0) return;
    const auto group = static_cast<std::size_t>(plan.group);
    const std::int64_t blocks = kSpanKeys / kv_[group].block_size;
    auto table = [&](std::int32_t b) { return inputs_.table[group].data() + b * limits_.max_blocks; };
    auto position = [&](std::int32_t b) { return inputs_.start[static_cast<std::size_t>(b)]; };
    plan.decodes.clear();
    std::int32_t token = 0;
    for (std::int32_t b = 0; b < num_seqs; b++) {
        const std::int32_t count = inputs_.count[static_cast<std::size_t>(b)];
        if (count == 1 && position(b) + 1 >= kSpanKeys) plan.decodes.push_back({b, token});
        token += count;
    }
    std::stable_sort(plan.decodes.begin(), plan.decodes.end(),
                     [&](const Decode& x, const Decode& y) { return table(x.seq)[0] < table(y.seq)[0]; });
    // Whole spans that both read out of the same blocks.
    auto common = [&](std::int32_t a, std::int32_t b) {
        const std::int64_t spans = (std::min(position(a), position(b)) + 1) / kSpanKeys;
        const std::int32_t* first = table(a);
        return static_cast<std::int32_t>((std::mismatch(first, first + spans * blocks, table(b)).first - first) /
                                         blocks);
    };
    const auto tile = static_cast<std::size_t>(std::max(1, kItemRows / plan.heads_per_kv));
    for (std::size_t i = 0; i < plan.decodes.size(); i++) {
        if (plan.done[static_cast<std::size_t>(plan.decodes[i].seq)]) continue;
        plan.alike.assign(1, plan.decodes[i]);
        std::int32_t spans = 0;
        for (std::size_t j = i + 1; j < plan.decodes.size() && plan.alike.size() < tile; j++) {
            const Decode& other = plan.decodes[j];
            if (table(other.seq)[0] != table(plan.decodes[i].seq)[0]) break;
            if (plan.done[static_cast<std::size_t>(other.seq)]) continue;
            const auto members = static_cast<std::int32_t>(plan.alike.size());
            const std::int32_t now = common(plan.decodes[i].seq, other.seq),
                               with = members == 1 ? now : std::min(spans, now);
            // One more shares where that saves more, though its shorter prefix may cost the others.
            if (members * with <= (members - 1) * spans) continue;
            spans = with;
            plan.alike.push_back(other);
        }
        if (plan.alike.size() > 1) add_shared(plan, spans, partial_rows);
    }
}

// The sequences in plan.alike, which share their first `spans` spans. Part p of the n-th lies n * heads_per_kv rows
// behind the first's, so that the shared item's rows are the members' partials.
void Executable::add_shared(AttendPlan& plan, std::int32_t spans, std::int64_t& partial_rows) {
    const auto heads = static_cast<std::int32_t>(kv_[static_cast<std::size_t>(plan.group)].kv_heads);
    const auto members = static_cast<std::int32_t>(plan.alike.size());
    const std::int64_t each = plan.heads_per_kv, rows = members * each;
    auto keys = [&](const Decode& d) { return inputs_.start[static_cast<std::size_t>(d.seq)] + 1; };
    std::int32_t most = 0;
    for (const Decode& d : plan.alike) most = std::max(most, spans_of(keys(d)));
    if (partial_rows + heads * rows * most > max_partial_rows_) return;
    const std::size_t first_row = plan.shared.size();
    for (const Decode& d : plan.alike) {
        plan.shared.push_back(d.token);
        plan.done[static_cast<std::size_t>(d.seq)] = 1;
    }
    plan.spans_saved += std::int64_t{heads} * spans * (members - 1);
    for (std::int32_t h = 0; h < heads; h++, partial_rows += rows * most) {
        const auto split = static_cast<std::int32_t>(plan.splits.size());
        for (std::int32_t s = 0; s < spans; s++) {
            // From behind the span every row sees all of it.
            AttendItem item{
                plan.alike[0].seq,      plan.alike[0].token, members, (s + 1) * kSpanKeys, h, s, s + 1, split,
                partial_rows + s * rows};
            item.splits = members;
            item.rows = plan.shared.data() + first_row;
            plan.items.push_back(item);
            plan.cost.push_back(double(rows) * (kSpanKeys + 64));
        }
        for (std::int32_t n = 0; n < members; n++) {
            const Decode& d = plan.alike[static_cast<std::size_t>(n)];
            const std::int64_t mine = partial_rows + n * each;
            AttendItem whole{d.seq, d.token, 1, keys(d) - 1, h, 0, spans_of(keys(d)), -1, 0};
            plan.splits.push_back({whole, mine, whole.span_end, rows});
            for (std::int32_t s = spans; s < whole.span_end; s++) {
                AttendItem item = whole;
                item.span = s;
                item.span_end = s + 1;
                item.split = split + n;
                item.partial = mine + s * rows;
                plan.items.push_back(item);
                plan.cost.push_back(double(each) * (std::min((s + 1) * kSpanKeys, keys(d)) - s * kSpanKeys + 64));
            }
        }
    }
}

std::int64_t Executable::spans_saved() const {
    return std::accumulate(plans_.begin(), plans_.end(), std::int64_t{0},
                           [](std::int64_t sum, const AttendPlan& plan) { return sum + plan.spans_saved; });
}

// Keys seen, and what a tile costs anyway, over the query rows at [position, position + tokens).
double Executable::tile_cost(const AttendPlan& plan, std::int64_t rows, std::int64_t position, std::int64_t tokens) {
    const double middle = double(position) + 0.5 * double(tokens);
    return double(rows) * (middle - first_seen(plan.window, static_cast<std::int32_t>(middle)) + 64);
}

void Executable::add_tile(AttendPlan& plan, const AttendItem& tile, double limit, std::int64_t& partial_rows) {
    const std::int64_t rows = std::int64_t{tile.tokens} * plan.heads_per_kv;
    const double cost = tile_cost(plan, rows, tile.position, tile.tokens);
    const std::int32_t spans = tile.span_end - tile.span;
    if (team_->threads() == 1 || spans < 2 || cost <= limit || partial_rows + rows * spans > max_partial_rows_) {
        plan.items.push_back(tile);
        plan.cost.push_back(cost);
        return;
    }
    const auto split = static_cast<std::int32_t>(plan.splits.size());
    plan.splits.push_back({tile, partial_rows, spans, rows});
    for (std::int32_t s = tile.span; s < tile.span_end; s++) {
        AttendItem part = tile;
        part.span = s;
        part.span_end = s + 1;
        part.split = split;
        part.partial = partial_rows;
        partial_rows += rows;
        plan.items.push_back(part);
        const std::int32_t first = std::max(s * kSpanKeys, first_seen(plan.window, tile.position));
        const std::int32_t last = std::min((s + 1) * kSpanKeys, tile.position + tile.tokens);
        plan.cost.push_back(double(rows) * (last - first + 64));
    }
}

}  // namespace octavo
