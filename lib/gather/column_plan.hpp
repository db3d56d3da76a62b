#pragma once
// From a layout to runs of rows: what every gather is made of, whoever copies them. The only place
// that knows where a sequence's tokens go.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/gather.hpp"

namespace rollring::gathering {

// A sequence where the layout puts it.
struct Placed {
    std::uint32_t sequence;  // of the batch
    std::uint32_t begin;     // its first token that is taken
    std::uint32_t tokens;
    std::uint64_t first_row;  // of the target
};

// A layout, for the sequences of one batch.
struct Placement {
    Form form{};
    bool left = false;  // is where the padding is
    std::uint64_t rows = 0;
    std::uint64_t length = 0;  // of each row of a padded layout
    std::vector<Placed> sequences;

    static Result<Placement> of(const Sequences& batch, const Layout& layout);
};

// Rows of the target that follow each other, and what is in them.
struct Run {
    enum class Kind : std::uint8_t { copied, value, counted };
    Kind kind;
    const std::byte* from;  // copied
    double value;           // value; counted: that of the first row, each next one is 1 more
    std::uint64_t first;
    std::uint64_t count;
};

// One target, checked: each sequence that has the column has rows of the same kind.
class ColumnPlan {
  public:
    // Both outlive this.
    static Result<ColumnPlan> of(const Sequences& batch, const Schema& schema,
                                 const GatherColumn& column, const Placement& placement);
    // Whether `column.to` is what the shape wants.
    [[nodiscard]] Result<void> check_target() const;

    [[nodiscard]] ArrayShape shape() const;
    [[nodiscard]] DType from_type() const { return from_; }
    [[nodiscard]] DType to_type() const { return to_; }
    [[nodiscard]] std::span<std::byte> target() const { return column_.to; }
    [[nodiscard]] std::uint64_t row_elements() const { return row_; }
    [[nodiscard]] std::uint64_t row_bytes() const { return row_ * to_.bytes(); }
    [[nodiscard]] std::uint64_t rows() const { return placement_->rows; }
    // Nothing of it comes from the records; or it is numbers in a row.
    [[nodiscard]] bool is_filled() const { return column_.source != Source::column; }
    [[nodiscard]] bool is_counted() const { return column_.source == Source::position_ids; }
    [[nodiscard]] const std::string& name() const { return name_; }
    // Of a sequence that has no column while nothing stands for one.
    [[nodiscard]] bool lacks(std::size_t i) const {
        return column_.source == Source::column && found_[i].data == nullptr && !column_.missing &&
               placement_->sequences[i].tokens != 0;
    }
    [[nodiscard]] std::unexpected<Error> lacking(std::size_t i) const;
    [[nodiscard]] std::unexpected<Error> out_of_range(std::size_t i) const;

    // Any byte of the record; null: nothing of it is needed.
    [[nodiscard]] const std::byte* record_of(std::size_t i) const {
        return is_filled() ? nullptr : found_[i].data;
    }

    // Calls each(Run) for the rows of the layout's sequence i, which it does not lack; empty runs
    // are left out.
    template <class Each>
    void runs_of(std::size_t i, Each each) const;

  private:
    ColumnPlan(const Sequences& batch, const GatherColumn& column, const Placement& placement)
        : batch_(&batch), column_(column), placement_(&placement) {}
    Result<void> find_column(const Schema& schema);

    template <class Each>
    void rows_of(std::size_t i, std::uint64_t first, Each each) const;

    const Sequences* batch_;
    GatherColumn column_;
    const Placement* placement_;
    std::string name_;
    DType from_{};
    DType to_{};
    std::vector<std::uint32_t> inner_;
    std::uint64_t row_ = 1;
    struct Found {
        const std::byte* data = nullptr;  // null: it has none
        std::uint32_t rows = 0;
    };
    std::vector<Found> found_;  // by the layout's sequence
};

Result<void> check_leased(const Sequences& batch);

// All of them, their targets checked. `placement` outlives them.
Result<std::vector<ColumnPlan>> plan_columns(const Sequences& batch, const Schema& schema,
                                             std::span<const GatherColumn> columns,
                                             const Layout& layout, const Placement& placement);

std::string who(const Sequences& batch, std::size_t sequence);

template <class Each>
void ColumnPlan::runs_of(std::size_t i, Each each) const {
    const auto put = [&](const Run& run) {
        if (run.count != 0) each(run);
    };
    const Placed& placed = placement_->sequences[i];
    if (placement_->form != Form::padded) {
        rows_of(i, placed.first_row, put);
        return;
    }
    const double pad = column_.pad.value_or(0);
    const std::uint64_t rest = placement_->length - placed.tokens;
    const bool left = placement_->left;
    put(Run{Run::Kind::value, nullptr, pad, placed.first_row, left ? rest : 0});
    rows_of(i, placed.first_row + (left ? rest : 0), put);
    put(Run{Run::Kind::value, nullptr, pad, placed.first_row + placed.tokens, left ? 0 : rest});
}

template <class Each>
void ColumnPlan::rows_of(std::size_t i, std::uint64_t first, Each each) const {
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
    const Found& found = found_[i];
    if (found.data == nullptr) {
        each(Run{value, nullptr, column_.missing.value_or(0), first, count});
        return;
    }
    // Rows [begin, end) of the record, as far as it has them.
    const std::int64_t has = found.rows;
    const std::int64_t begin = std::int64_t{placed.begin} + column_.shift;
    const std::int64_t end = begin + static_cast<std::int64_t>(count);
    const std::int64_t from = std::clamp<std::int64_t>(begin, 0, has);
    const std::int64_t to = std::clamp<std::int64_t>(end, from, has);
    const auto before = static_cast<std::uint64_t>(
        std::clamp<std::int64_t>(from - begin, 0, static_cast<std::int64_t>(count)));
    const auto taken = std::min(static_cast<std::uint64_t>(to - from), count - before);
    each(Run{value, nullptr, column_.beyond, first, before});
    each(Run{copied, found.data + static_cast<std::uint64_t>(from) * row_ * from_.bytes(), 0,
             first + before, taken});
    each(Run{value, nullptr, column_.beyond, first + before + taken, count - before - taken});
}

}  // namespace rollring::gathering
