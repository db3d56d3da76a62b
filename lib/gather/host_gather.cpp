// Gathers with the CPU: threads, which end with the call, share the sequences.

#include <fmt/core.h>

#include <atomic>
#include <system_error>
#include <thread>

#include "column_plan.hpp"
#include "rollring/schema.hpp"

namespace rollring {
namespace gathering {
namespace {

// Sequences of roughly equal bytes go to each thread.
constexpr std::uint64_t bytes_per_thread = std::uint64_t{4} << 20;
constexpr unsigned threads_max = 16;

unsigned threads_for(std::uint64_t bytes, std::uint32_t asked) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    const unsigned most = asked > 0 ? asked : std::min(cores, threads_max);
    return static_cast<unsigned>(std::clamp<std::uint64_t>(bytes / bytes_per_thread, 1, most));
}

// Ascending numbers, in pieces that stay in the cache.
bool count_up(const ColumnPlan& plan, double first, std::byte* to, std::uint64_t rows) {
    std::array<std::int64_t, 256> numbers;
    auto next = static_cast<std::int64_t>(first);
    while (rows != 0) {
        const std::uint64_t some = std::min<std::uint64_t>(rows, numbers.size());
        for (std::uint64_t i = 0; i < some; i++) numbers[i] = next++;
        const auto* from = reinterpret_cast<const std::byte*>(numbers.data());
        if (!convert(dtype_i64, from, plan.to_type(), to, some)) return false;
        to += some * plan.to_type().bytes();
        rows -= some;
    }
    return true;
}

bool run_all(const ColumnPlan& plan, const Finder& find, std::size_t i) {
    bool good = true;
    Found found;
    static_cast<void>(find(i, found));  // checked before
    plan.runs_of(i, found, [&](const Run& run) {
        std::byte* to = plan.target().data() + run.first * plan.row_bytes();
        const std::uint64_t elements = run.count * plan.row_elements();
        switch (run.kind) {
            case Run::Kind::copied:
                good &= convert(plan.from_type(), run.from, plan.to_type(), to, elements);
                break;
            case Run::Kind::value:
                good &= fill(plan.to_type(), run.value, to, elements);
                break;
            case Run::Kind::counted:
                good &= count_up(plan, run.value, to, run.count);
                break;
        }
    });
    return good;
}

// The first sequence that failed, over all threads.
class FirstBad {
  public:
    void note(std::size_t i) {
        std::size_t known = first_;
        while (i < known && !first_.compare_exchange_weak(known, i)) {
        }
    }
    [[nodiscard]] std::optional<std::size_t> get() const {
        return first_ == none ? std::nullopt : std::optional(first_.load());
    }

  private:
    static constexpr std::size_t none = ~std::size_t{0};
    std::atomic<std::size_t> first_ = none;
};

Result<void> copy_column(const ColumnPlan& plan, const Ahead& ahead, std::size_t sequences,
                         std::uint32_t threads) {
    const Finder find = plan.finder();
    for (std::size_t i = 0; i < sequences; i++) {
        Found found;
        ahead.fetch(i);
        if (!find(i, found)) return plan.refusal(i);
    }
    std::atomic<std::size_t> next = 0;
    FirstBad bad;
    const auto work = [&] {
        for (std::size_t i = next++; i < sequences; i = next++) {
            if (!run_all(plan, find, i)) bad.note(i);
        }
    };
    const unsigned workers = threads_for(plan.target().size(), threads);
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < std::min<std::size_t>(workers, sequences); i++) {
        try {
            helpers.emplace_back(work);
        } catch (const std::system_error&) {
            break;  // fewer threads can do it, too
        }
    }
    work();
    helpers.clear();
    if (const auto first = bad.get()) return plan.out_of_range(*first);
    return {};
}

GatherColumn with_pad(GatherColumn column, const Layout& layout) {
    if (!column.pad) column.pad = layout.padding.value;
    return column;
}

}  // namespace

Result<std::vector<ColumnPlan>> plan_columns(const Sequences& batch, const Schema& schema,
                                             std::span<const GatherColumn> columns,
                                             const Layout& layout, const Placement& placement) {
    std::vector<ColumnPlan> plans;
    plans.reserve(columns.size());
    for (const GatherColumn& column : columns) {
        auto plan = ColumnPlan::of(batch, schema, with_pad(column, layout), placement);
        if (!plan) return std::unexpected(plan.error());
        if (auto good = plan->check_target(); !good) return std::unexpected(good.error());
        plans.push_back(std::move(*plan));
    }
    return plans;
}

}  // namespace gathering

Result<ArrayShape> gathered_shape(const Sequences& batch, const Schema& schema,
                                  const GatherColumn& column, const Layout& layout) {
    const auto placement = gathering::Placement::of(batch, layout);
    if (!placement) return std::unexpected(placement.error());
    const auto plan = gathering::ColumnPlan::of(batch, schema, column, *placement);
    if (!plan) return std::unexpected(plan.error());
    return plan->shape();
}

Result<std::vector<std::int64_t>> gathered_offsets(const Sequences& batch, const Layout& layout) {
    Layout packed = layout;
    packed.form = Form::packed;
    const auto placement = gathering::Placement::of(batch, packed);
    if (!placement) return std::unexpected(placement.error());
    std::vector<std::int64_t> offsets;
    offsets.reserve(placement->sequences.size() + 1);
    for (const gathering::Placed& one : placement->sequences) {
        offsets.push_back(static_cast<std::int64_t>(one.first_row));
    }
    offsets.push_back(static_cast<std::int64_t>(placement->rows));
    return offsets;
}

Result<void> gather(const Sequences& batch, const Schema& schema,
                    std::span<const GatherColumn> columns, const Layout& layout,
                    std::uint32_t threads) {
    const auto placement = gathering::Placement::of(batch, layout);
    if (!placement) return std::unexpected(placement.error());
    const auto plans = gathering::plan_columns(batch, schema, columns, layout, *placement);
    if (!plans) return std::unexpected(plans.error());
    const gathering::Ahead ahead(batch, *placement, *plans);
    for (const gathering::ColumnPlan& plan : *plans) {
        auto copied = gathering::copy_column(plan, ahead, placement->sequences.size(), threads);
        if (!copied) return copied;
    }
    return {};
}

}  // namespace rollring
