// Gathers with the CPU: threads, which end with the call, share the sequences.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "column_plan.hpp"
#include "rollring/schema.hpp"
#include "stream_copy.hpp"

namespace rollring {
namespace gathering {
namespace {

// Sequences of roughly equal bytes go to each thread.
constexpr std::uint64_t bytes_per_thread = std::uint64_t{1} << 20;  // beginning one takes 20 us
constexpr unsigned threads_max = 16;

unsigned threads_for(std::uint64_t bytes, std::uint32_t asked) {
    // Asked once: the C library opens a file for it.
    static const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
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

// Copies past the caches, of columns that have one dtype in records and target.
class Streams {
  public:
    explicit Streams(std::size_t runs) {
        sources_.reserve(runs);
        targets_.reserve(runs);
    }
    // Whether copy() will do it.
    bool add(const ColumnPlan& plan, const Run& run, std::byte* to) {
        if (run.kind != Run::Kind::copied || plan.from_type() != plan.to_type()) return false;
        sources_.emplace_back(run.from, run.count * plan.row_bytes());
        targets_.push_back(to);
        return true;
    }
    void copy() const {
        ReadAhead ahead(sources_);
        for (std::size_t i = 0; i < sources_.size(); i++) {
            ahead.begin(i);
            stream_copy(targets_[i], sources_[i], ahead);
        }
    }

  private:
    std::vector<ReadAhead::Source> sources_;
    std::vector<std::byte*> targets_;
};

// `streams`: null if caches hold the arrays.
bool run_all(const ColumnPlan& plan, const Finder& find, std::size_t i, Streams* streams) {
    bool good = true;
    Found found;
    static_cast<void>(find(i, found));  // checked before
    plan.runs_of(i, found, [&](const Run& run) {
        std::byte* to = plan.target().data() + run.first * plan.row_bytes();
        const std::uint64_t elements = run.count * plan.row_elements();
        if (streams != nullptr && streams->add(plan, run, to)) return;
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

// All columns of a sequence together: they are neighbours in its record.
class HostGather {
  public:
    HostGather(std::span<const ColumnPlan> plans, std::size_t sequences)
        : plans_(plans), sequences_(sequences), bad_(plans.size()) {
        for (const ColumnPlan& plan : plans) {
            finders_.push_back(plan.finder());
            bytes_ += plan.target().size();
        }
    }
    // Whether each sequence has each column.
    Result<void> check(const Ahead& ahead) const {
        for (std::size_t column = 0; column < plans_.size(); column++) {
            for (std::size_t i = 0; i < sequences_; i++) {
                Found found;
                ahead.fetch(i);
                if (!finders_[column](i, found)) return plans_[column].refusal(i);
            }
        }
        return {};
    }
    Result<void> run(std::uint32_t threads) {
        const std::size_t workers = std::min<std::size_t>(threads_for(bytes_, threads), sequences_);
        // Few turns at the counter, and still an even end; and each one begins with lines that are
        // not there yet.
        share_ =
            std::clamp<std::size_t>(sequences_ / (std::max<std::size_t>(workers, 1) * 8), 1, 256);
        std::vector<std::jthread> helpers;
        for (std::size_t i = 1; i < workers; i++) {
            try {
                helpers.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                break;  // fewer threads can do it, too
            }
        }
        work();
        helpers.clear();
        for (std::size_t column = 0; column < plans_.size(); column++) {
            if (const auto first = bad_[column].get()) return plans_[column].out_of_range(*first);
        }
        return {};
    }

  private:
    void work() {
        for (std::size_t begin = next_.fetch_add(share_); begin < sequences_;
             begin = next_.fetch_add(share_)) {
            copy(begin, std::min(begin + share_, sequences_));
        }
        end_streams();
    }
    void copy(std::size_t begin, std::size_t end) {
        std::optional<Streams> streams;
        if (bytes_ >= streamed_from) streams.emplace((end - begin) * plans_.size());
        for (std::size_t i = begin; i < end; i++) {
            for (std::size_t column = 0; column < plans_.size(); column++) {
                const bool good =
                    run_all(plans_[column], finders_[column], i, streams ? &*streams : nullptr);
                if (!good) bad_[column].note(i);
            }
        }
        if (streams) streams->copy();
    }

    std::span<const ColumnPlan> plans_;
    std::size_t sequences_;
    std::vector<FirstBad> bad_;
    std::vector<Finder> finders_;
    std::uint64_t bytes_ = 0;
    std::size_t share_ = 1;
    std::atomic<std::size_t> next_ = 0;
};

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
    gathering::HostGather all(*plans, placement->sequences.size());
    auto checked = all.check(gathering::Ahead(batch, *placement, *plans));
    if (!checked) return checked;
    return all.run(threads);
}

}  // namespace rollring
