#pragma once
// From a layout to runs of rows, which every gather copies. The only file that knows where a
// sequence's tokens go.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prefetch.hpp"
#include "rollring/gather.hpp"

namespace rollring::gathering {

// A sequence in its layout.
struct Placed {
    std::uint32_t sequence;  // of the batch
    std::uint32_t begin;     // its first token that is taken
    std::uint32_t tokens;
    std::uint64_t first_row;  // of the target
};

// A layout, for the sequences of one batch.
struct Placement {
    Form form{};
    bool left = false;  // the padding is on the left
    std::uint64_t rows = 0;
    std::uint64_t length = 0;  // of each row of a padded layout
    std::vector<Placed> sequences;
    std::size_t placed = 0;  // entries that count; the rest follow the batch's order

    static Result<Placement> of(const Sequences& batch, const Layout& layout);
    // Lays out all sequences, or leaves some to place(), so that the first ones of a large batch
    // can be copied before the others are placed. Reuses the memory of the previous batch.
    Result<void> begin(const Sequences& batch, const Layout& layout);
    // Lays out the sequences before `end`.
    void place(const Sequences& batch, std::size_t end);
    [[nodiscard]] std::uint32_t sequence_of(std::size_t i) const {
        return i < placed ? sequences[i].sequence : static_cast<std::uint32_t>(i);
    }

  private:
    Result<void> pad(const Sequences& batch, const Padding& padding, std::uint32_t longest);
};

// Adjacent rows of the target, and their contents.
struct Run {
    enum class Kind : std::uint8_t { copied, value, counted };
    Kind kind;
    const std::byte* from;  // copied
    double value;           // value; counted: that of the first row, each next one is 1 more
    std::uint64_t first;
    std::uint64_t count;
};

// The rows that one sequence has of a column.
struct Found {
    const std::byte* data = nullptr;  // null: none
    std::uint32_t rows = 0;
};

class ColumnPlan;

// Finds a column. Most records have the form of the first one: there the column's address follows
// from the record's address. In other records the plan searches. Loops keep this in registers.
class Finder {
  public:
    [[nodiscard]] bool operator()(std::size_t i, Found& found) const;

  private:
    friend class ColumnPlan;
    static constexpr std::size_t few = 4;
    const ColumnPlan* plan_;
    const detail::RecordPlace* places_;
    const Placed* placed_;
    std::uint32_t form_;  // none_is: none is found this way
    static constexpr std::uint32_t none_is = detail::RecordPlace::no_form - 1;
    std::uint32_t before_ = 0;  // columns of tokens before it
    std::uint64_t fixed_ = 0;   // bytes of others before it
    std::array<std::uint32_t, few> row_bytes_{};
};

// One target, and the source of its rows. The first sequence that has the column determines their
// type.
class ColumnPlan {
  public:
    // `batch` and `placement` must outlive this object.
    static Result<ColumnPlan> of(const Sequences& batch, const Schema& schema,
                                 const GatherColumn& column, const Placement& placement);
    // Checks `column.to` against the shape.
    [[nodiscard]] Result<void> check_target() const;

    [[nodiscard]] ArrayShape shape() const;
    [[nodiscard]] DType from_type() const { return from_; }
    [[nodiscard]] DType to_type() const { return to_; }
    [[nodiscard]] std::span<std::byte> target() const { return column_.to; }
    [[nodiscard]] std::uint64_t row_elements() const { return row_; }
    [[nodiscard]] std::uint64_t row_from_bytes() const { return row_from_bytes_; }
    [[nodiscard]] std::uint64_t row_bytes() const { return row_ * to_.bytes(); }
    [[nodiscard]] std::uint64_t rows() const { return placement_->rows; }
    // is_filled: no row comes from the records. is_counted: the rows are ascending numbers.
    [[nodiscard]] bool is_filled() const { return column_.source != Source::column; }
    [[nodiscard]] bool is_counted() const { return column_.source == Source::position_ids; }
    [[nodiscard]] const std::string& name() const { return name_; }
    // For the layout's sequence i. False: it lacks the column and no value replaces it, or its rows
    // differ from the first one's: see refusal().
    [[nodiscard]] bool find(std::size_t i, Found& found) const;
    // The same, for loops.
    [[nodiscard]] Finder finder() const;
    [[nodiscard]] std::unexpected<Error> refusal(std::size_t i) const;
    [[nodiscard]] std::unexpected<Error> out_of_range(std::size_t i) const;

    // Most sequences' rows are adjacent rows of their record, with padding on one side.
    [[nodiscard]] bool is_plain() const { return is_plain_; }
    [[nodiscard]] const Placement& placement() const { return *placement_; }
    [[nodiscard]] double pad() const { return column_.pad.value_or(0); }
    // Calls each(Run) for the rows of the layout's sequence i, for which find() returned `found`;
    // empty runs are left out.
    template <class Each>
    void runs_of(std::size_t i, const Found& found, const Each& each) const;

    // The bytes of a view that find() reads, by their offsets in the first sequence's view.
    struct Reads {
        std::size_t begin = ~std::size_t{0};
        std::size_t end = 0;
        std::uint32_t form = 0;  // of records that need no view
    };
    void add_to(Reads& reads) const;

  private:
    ColumnPlan(const Sequences& batch, const GatherColumn& column, const Placement& placement)
        : batch_(&batch), column_(column), placement_(&placement) {}
    Result<void> find_column(const Schema& schema);
    static bool same_rows(const ColumnView& a, const ColumnView& b) {
        if (a.dtype != b.dtype || a.dims != b.dims) return false;
        for (std::uint8_t i = 1; i < a.dims; i++) {
            if (a.shape[i] != b.shape[i]) return false;
        }
        return true;
    }

    template <class Each>
    void rows_of(std::size_t i, const Found& found, std::uint64_t first, const Each& each) const;

    const Sequences* batch_;
    GatherColumn column_;
    const Placement* placement_;
    std::string name_;
    DType from_{};
    DType to_{};
    std::vector<std::uint32_t> inner_;
    std::uint64_t row_ = 1;
    std::uint64_t row_from_bytes_ = 0;
    bool is_plain_ = false;              // of a column that is not shifted
    const ColumnView* first_ = nullptr;  // of the sequences that have the column
    const TrajectoryView* first_view_ = nullptr;
    std::uint32_t form_ = 0;  // of its record
    std::size_t at_ = 0;      // of its columns
};

// Views are far apart in memory: prefetches the bytes that plans will read of a later one, if they
// will read any.
class Ahead {
  public:
    Ahead(const Sequences& batch, const Placement& placement, std::span<const ColumnPlan> plans)
        : batch_(&batch), placement_(&placement) {
        for (const ColumnPlan& plan : plans) plan.add_to(reads_);
    }
    void fetch(std::size_t i) const {
        constexpr std::size_t ahead = 40;
        if (i + ahead >= placement_->sequences.size()) return;
        const std::uint32_t sequence = placement_->sequence_of(i + ahead);
        if (batch_->places()[sequence].form == reads_.form) return;
        const auto* view = reinterpret_cast<const char*>(&batch_->sequences()[sequence].view);
        for (std::size_t at = reads_.begin; at < reads_.end; at += 64) prefetch_to_read(view + at);
    }

  private:
    const Sequences* batch_;
    const Placement* placement_;
    ColumnPlan::Reads reads_;
};

Result<void> check_leased(const Sequences& batch);

// All plans, with checked targets. `placement` must outlive them.
Result<std::vector<ColumnPlan>> plan_columns(const Sequences& batch, const Schema& schema,
                                             std::span<const GatherColumn> columns,
                                             const Layout& layout, const Placement& placement);

std::string who(const Sequences& batch, std::size_t sequence);

inline bool Finder::operator()(std::size_t i, Found& found) const {
    const detail::RecordPlace& place = places_[placed_[i].sequence];
    if (place.form != form_) [[unlikely]]
        return plan_->find(i, found);
    std::uint64_t at = fixed_;
    for (std::uint32_t column = 0; column < before_; column++) {
        at += detail::RecordForm::bytes_of(row_bytes_[column], place.tokens);
    }
    found = {place.columns + at, place.tokens};
    return true;
}

template <class Each>
void ColumnPlan::runs_of(std::size_t i, const Found& found, const Each& each) const {
    const auto put = [&](const Run& run) {
        if (run.count != 0) each(run);
    };
    const Placed& placed = placement_->sequences[i];
    if (placement_->form != Form::padded) {
        rows_of(i, found, placed.first_row, put);
        return;
    }
    const std::uint64_t rest = placement_->length - placed.tokens;
    const bool left = placement_->left;
    put(Run{Run::Kind::value, nullptr, pad(), placed.first_row, left ? rest : 0});
    rows_of(i, found, placed.first_row + (left ? rest : 0), put);
    put(Run{Run::Kind::value, nullptr, pad(), placed.first_row + placed.tokens, left ? 0 : rest});
}

template <class Each>
void ColumnPlan::rows_of(std::size_t i, const Found& found, std::uint64_t first,
                         const Each& each) const {
    using enum Run::Kind;
    const Placed& placed = placement_->sequences[i];
    const std::uint64_t count = placement_->form == Form::per_sequence ? 1 : placed.tokens;
    if (column_.source == Source::position_ids) {
        each(Run{counted, nullptr, static_cast<double>(placed.begin), first, count});
        return;
    }
    if (column_.source != Source::column) {
        const auto values =
            column_.source == Source::rewards ? batch_->rewards() : batch_->advantages();
        each(Run{value, nullptr, values[placed.sequence], first, count});
        return;
    }
    if (found.data == nullptr) {
        each(Run{value, nullptr, column_.missing.value_or(0), first, count});
        return;
    }
    // Rows [begin, end) of the record, as far as they exist.
    const std::int64_t has = found.rows;
    const std::int64_t begin = std::int64_t{placed.begin} + column_.shift;
    const std::int64_t end = begin + static_cast<std::int64_t>(count);
    const std::int64_t from = std::clamp<std::int64_t>(begin, 0, has);
    const std::int64_t to = std::clamp<std::int64_t>(end, from, has);
    const auto before = static_cast<std::uint64_t>(
        std::clamp<std::int64_t>(from - begin, 0, static_cast<std::int64_t>(count)));
    const auto taken = std::min(static_cast<std::uint64_t>(to - from), count - before);
    each(Run{value, nullptr, column_.beyond, first, before});
    each(Run{copied, found.data + static_cast<std::uint64_t>(from) * row_from_bytes_, 0,
             first + before, taken});
    each(Run{value, nullptr, column_.beyond, first + before + taken, count - before - taken});
}

}  // namespace rollring::gathering
