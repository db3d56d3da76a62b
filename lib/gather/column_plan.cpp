#include "column_plan.hpp"

#include <fmt/core.h>

#include "rollring/ring.hpp"
#include "rollring/schema.hpp"

namespace rollring::gathering {
namespace {

constexpr std::uint64_t length_max = std::uint64_t{1} << 32;

Placed part_of(const Sequences& batch, std::uint32_t sequence, Part part) {
    // The view may be far away in memory; the offsets are not.
    const auto offsets = batch.cu_seqlens();
    const auto tokens = static_cast<std::uint32_t>(offsets[sequence + 1] - offsets[sequence]);
    if (part == Part::all) return {sequence, 0, tokens, 0};
    const std::uint32_t prompt = std::min(batch.sequences()[sequence].view.meta().n_prompt, tokens);
    if (part == Part::prompt) return {sequence, 0, prompt, 0};
    return {sequence, prompt, tokens - prompt, 0};
}

std::uint32_t longest_of(const Sequences& batch) {
    const auto offsets = batch.cu_seqlens();
    std::int64_t most = 0;
    for (std::size_t i = 1; i < offsets.size(); i++) {
        most = std::max(most, offsets[i] - offsets[i - 1]);
    }
    return static_cast<std::uint32_t>(most);
}

Result<std::uint64_t> padded_length(std::uint64_t longest, const Padding& padding) {
    const std::uint64_t length = padding.length == 0 ? longest : padding.length;
    const std::uint64_t multiple = padding.multiple_of;
    if (multiple == 0 || multiple > length_max || length > length_max) {
        return refused(Errc::invalid_argument,
                       fmt::format("padding to a length of {}, a multiple of {}: use 1 to 2^32",
                                   length, multiple));
    }
    return (length + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<void> check_leased(const Sequences& batch) {
    if (batch.leased()) return {};
    return refused(Errc::not_leased,
                   "the batch was acknowledged or given back; copy its columns first");
}

std::string who(const Sequences& batch, std::size_t sequence) {
    const TrajectoryView& view = batch.sequences()[sequence].view;
    return fmt::format("sequence {} (instance '{}', repetition {})", sequence,
                       printable(view.instance_id()), batch.repetition_ids()[sequence]);
}

Result<Placement> Placement::of(const Sequences& batch, const Layout& layout) {
    Placement made;
    if (auto begun = made.begin(batch, layout); !begun) return std::unexpected(begun.error());
    made.place(batch, made.sequences.size());
    return made;
}

Result<void> Placement::begin(const Sequences& batch, const Layout& layout) {
    if (auto leased = check_leased(batch); !leased) return leased;
    form = layout.form;
    left = layout.padding.side == Side::left;
    rows = 0;
    length = 0;
    placed = 0;
    const auto all = static_cast<std::uint32_t>(batch.sequences().size());
    const std::size_t count = layout.order ? layout.order->size() : all;
    sequences.resize(count);
    std::uint64_t tokens = 0;
    std::uint32_t longest = 0;
    if (!layout.order && layout.part == Part::all) {
        if (count != 0) tokens = static_cast<std::uint64_t>(batch.cu_seqlens().back());
        if (form == Form::padded) longest = longest_of(batch);
    } else {
        for (; placed < count; placed++) {
            const std::uint32_t sequence =
                layout.order ? (*layout.order)[placed] : static_cast<std::uint32_t>(placed);
            if (sequence >= all) {
                return refused(Errc::invalid_argument,
                               fmt::format("sequence {} of a batch of {}", sequence, all));
            }
            Placed& one = sequences[placed] = part_of(batch, sequence, layout.part);
            one.first_row = form == Form::packed ? tokens : placed;
            tokens += one.tokens;
            longest = std::max(longest, one.tokens);
        }
    }
    rows = form == Form::packed ? tokens : count;
    return form == Form::padded ? pad(batch, layout.padding, longest) : Result<void>();
}

Result<void> Placement::pad(const Sequences& batch, const Padding& padding, std::uint32_t longest) {
    const auto found = padded_length(longest, padding);
    if (!found) return std::unexpected(found.error());
    length = *found;
    rows *= length;
    for (Placed& one : std::span(sequences).first(placed)) one.first_row *= length;
    if (longest <= length) return {};
    place(batch, sequences.size());
    const auto first = std::ranges::find(sequences, longest, &Placed::tokens);
    return refused(Errc::invalid_argument,
                   fmt::format("{} has {} tokens, more than the requested length of {}",
                               who(batch, first->sequence), longest, length));
}

void Placement::place(const Sequences& batch, std::size_t end) {
    const auto offsets = batch.cu_seqlens();
    for (; placed < end; placed++) {
        const std::int64_t first = offsets[placed];
        sequences[placed] = {static_cast<std::uint32_t>(placed), 0,
                             static_cast<std::uint32_t>(offsets[placed + 1] - first),
                             form == Form::packed   ? static_cast<std::uint64_t>(first)
                             : form == Form::padded ? placed * length
                                                    : placed};
    }
}

Result<ColumnPlan> ColumnPlan::of(const Sequences& batch, const Schema& schema,
                                  const GatherColumn& column, const Placement& placement) {
    ColumnPlan made(batch, column, placement);
    switch (column.source) {
        case Source::column:
            if (auto found = made.find_column(schema); !found) {
                return std::unexpected(found.error());
            }
            break;
        case Source::position_ids:
            made.name_ = "position_ids";
            made.from_ = dtype_i64;
            break;
        case Source::advantages:
        case Source::rewards:
            made.name_ = column.source == Source::rewards ? "rewards" : "advantages";
            made.from_ = dtype_f64;
            break;
    }
    const bool by_token = column.source == Source::column || column.source == Source::position_ids;
    if (placement.form == Form::per_sequence && by_token) {
        return refused(Errc::invalid_argument,
                       fmt::format("'{}' does not have one value per sequence", made.name_));
    }
    made.to_ = column.dtype.value_or(made.from_);
    made.row_from_bytes_ = made.row_ * made.from_.bytes();
    made.is_plain_ = column.source == Source::column && column.shift == 0;
    if (!can_convert(made.from_, made.to_)) {
        return refused(Errc::invalid_argument,
                       fmt::format("column '{}' is {}: it cannot be converted to {}", made.name_,
                                   made.from_.to_string(), made.to_.to_string()));
    }
    return made;
}

Result<void> ColumnPlan::find_column(const Schema& schema) {
    if (column_.column >= schema.columns().size()) {
        return refused(Errc::invalid_argument,
                       fmt::format("the schema has no column {}", column_.column));
    }
    const Column& declared = schema.columns()[column_.column];
    name_ = declared.name;
    if (declared.per != Per::token) {
        return refused(
            Errc::invalid_argument,
            fmt::format("column '{}' does not have one row per token: read it sequence by sequence",
                        name_));
    }
    for (std::size_t i = 0; i < placement_->sequences.size() && first_ == nullptr; i++) {
        const std::uint32_t sequence = placement_->sequence_of(i);
        first_view_ = &batch_->sequences()[sequence].view;
        first_ = first_view_->find(column_.column);
        form_ = batch_->places()[sequence].form;
    }
    if (first_ != nullptr) at_ = static_cast<std::size_t>(first_ - first_view_->columns().data());
    const bool known = declared.accepts == Accepts::exact &&
                       std::ranges::find(declared.dims, 0U) == declared.dims.end();
    if (first_ == nullptr && column_.missing && known) {
        from_ = declared.dtype;  // as if each had rows of such numbers
        for (const std::uint32_t extent : declared.dims) inner_.push_back(extent);
    } else if (first_ == nullptr) {
        return refused(Errc::invalid_argument,
                       fmt::format("no sequence of the batch carries column '{}'", name_));
    } else {
        from_ = first_->dtype;
        inner_.assign(first_->shape.begin() + 1, first_->shape.begin() + first_->dims);
    }
    for (const std::uint32_t extent : inner_) row_ *= extent;
    return {};
}

ArrayShape ColumnPlan::shape() const {
    ArrayShape shape{.dtype = to_};
    const auto outer = [&](std::uint64_t extent) { shape.shape[shape.dims++] = extent; };
    if (placement_->form == Form::packed) {
        outer(placement_->rows);
    } else {
        outer(placement_->sequences.size());
    }
    if (placement_->form == Form::padded) outer(placement_->length);
    for (const std::uint32_t extent : inner_) outer(extent);
    return shape;
}

Result<void> ColumnPlan::check_target() const {
    const std::uint64_t needed = placement_->rows * row_bytes();
    if (column_.to.size() != needed) {
        return refused(Errc::invalid_argument,
                       fmt::format("the target of column '{}' has {} B, but {} are needed", name_,
                                   column_.to.size(), needed));
    }
    if (reinterpret_cast<std::uintptr_t>(column_.to.data()) % to_.bytes() != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("the target of column '{}' is not aligned to its {}", name_,
                                   to_.to_string()));
    }
    return {};
}

bool ColumnPlan::find(std::size_t i, Found& found) const {
    found = {};
    if (is_filled()) return true;
    const Placed& placed = placement_->sequences[i];
    const ColumnView* view = batch_->sequences()[placed.sequence].view.find(column_.column);
    if (view == nullptr) return column_.missing.has_value() || placed.tokens == 0;
    found = {view->data.data(), view->shape[0]};
    return first_ == nullptr || same_rows(*first_, *view);
}

Finder ColumnPlan::finder() const {
    Finder made;
    made.plan_ = this;
    made.places_ = batch_->places().data();
    made.placed_ = placement_->sequences.data();
    made.form_ = Finder::none_is;
    if (first_ == nullptr || form_ >= batch_->forms().size()) return made;
    const auto& columns = batch_->forms()[form_].columns;
    if (columns[at_].row_bytes == 0) return made;
    for (const auto& column : std::span(columns).first(at_)) {
        if (column.row_bytes == 0) {
            made.fixed_ += column.bytes;
        } else if (made.before_ == Finder::few) {
            return made;
        } else {
            made.row_bytes_[made.before_++] = column.row_bytes;
        }
    }
    made.form_ = form_;
    return made;
}

std::unexpected<Error> ColumnPlan::refusal(std::size_t i) const {
    const std::uint32_t sequence = placement_->sequences[i].sequence;
    if (batch_->sequences()[sequence].view.find(column_.column) != nullptr) {
        return refused(
            Errc::invalid_argument,
            fmt::format(
                "column '{}' of {} differs in dtype or inner shape from the sequences before it",
                name_, who(*batch_, sequence)));
    }
    return refused(Errc::invalid_argument,
                   fmt::format("{} has no column '{}': give a fill value for missing columns",
                               who(*batch_, sequence), name_));
}

void ColumnPlan::add_to(Reads& reads) const {
    if (first_ == nullptr) return;
    const auto* view = reinterpret_cast<const char*>(first_view_);
    const auto at = [&](const void* byte) {
        return static_cast<std::size_t>(static_cast<const char*>(byte) - view);
    };
    const std::size_t end = at(first_ + 1);
    if (end > sizeof(TrajectoryView)) return;  // many columns, stored elsewhere
    constexpr std::size_t counts = 16;         // in front of them: their number
    reads.begin = std::min(reads.begin, at(first_view_->columns().data()) - counts);
    reads.end = std::max(reads.end, end);
    reads.form = form_;
}

std::unexpected<Error> ColumnPlan::out_of_range(std::size_t i) const {
    return refused(
        Errc::invalid_argument,
        fmt::format("column '{}' of {}, or its fill value, has a value outside the range of {}",
                    name_, who(*batch_, placement_->sequences[i].sequence), to_.to_string()));
}

}  // namespace rollring::gathering
