#include "column_plan.hpp"

#include <fmt/format.h>

#include "prefetch.hpp"
#include "rollring/convert.hpp"
#include "rollring/ring.hpp"

namespace rollring::gathering {
namespace {

// Of a view, that are looked at: numbers, and the columns up to the one that is looked for.
constexpr std::size_t view_bytes = std::min<std::size_t>(sizeof(TrajectoryView), 448);
constexpr std::uint64_t length_max = std::uint64_t{1} << 32;

Placed part_of(const Sequences& batch, std::uint32_t sequence, Part part) {
    // The view may be far away, and this is not.
    const auto offsets = batch.cu_seqlens();
    const auto tokens = static_cast<std::uint32_t>(offsets[sequence + 1] - offsets[sequence]);
    if (part == Part::all) return {sequence, 0, tokens, 0};
    const std::uint32_t prompt = std::min(batch.sequences()[sequence].view.meta().n_prompt, tokens);
    if (part == Part::prompt) return {sequence, 0, prompt, 0};
    return {sequence, prompt, tokens - prompt, 0};
}

Result<std::uint64_t> padded_length(const Sequences& batch, const std::vector<Placed>& sequences,
                                    const Padding& padding) {
    const auto longest = std::ranges::max_element(sequences, {}, &Placed::tokens);
    const std::uint64_t needed = longest == sequences.end() ? 0 : longest->tokens;
    const std::uint64_t length = padding.length == 0 ? needed : padding.length;
    const std::uint64_t multiple = padding.multiple_of;
    if (multiple == 0 || multiple > length_max || length > length_max) {
        return refused(Errc::invalid_argument,
                       fmt::format("padding to a length of {}, a multiple of {}: use 1 to 2^32",
                                   length, multiple));
    }
    const std::uint64_t rounded = (length + multiple - 1) / multiple * multiple;
    if (rounded < needed) {
        return refused(
            Errc::invalid_argument,
            fmt::format("{} has {} tokens, more than the length of {} that was asked for",
                        who(batch, longest->sequence), needed, rounded));
    }
    return rounded;
}

bool same_rows(const ColumnView& a, const ColumnView& b) {
    return a.dtype == b.dtype && a.dims == b.dims &&
           std::equal(a.shape.begin() + 1, a.shape.begin() + a.dims, b.shape.begin() + 1);
}

}  // namespace

Result<void> check_leased(const Sequences& batch) {
    if (batch.leased()) return {};
    return refused(Errc::not_leased,
                   "the batch was acknowledged or given back: copy its columns before");
}

std::string who(const Sequences& batch, std::size_t sequence) {
    const TrajectoryView& view = batch.sequences()[sequence].view;
    return fmt::format("sequence {} (instance '{}', repetition {})", sequence,
                       printable(view.instance_id()), view.meta().repetition_id);
}

Result<Placement> Placement::of(const Sequences& batch, const Layout& layout) {
    if (auto leased = check_leased(batch); !leased) return std::unexpected(leased.error());
    Placement made;
    made.form = layout.form;
    made.left = layout.padding.side == Side::left;
    const auto all = static_cast<std::uint32_t>(batch.sequences().size());
    const std::size_t count = layout.order ? layout.order->size() : all;
    made.sequences.reserve(count);
    for (std::uint32_t i = 0; i < count; i++) {
        const std::uint32_t sequence = layout.order ? (*layout.order)[i] : i;
        if (sequence >= all) {
            return refused(Errc::invalid_argument,
                           fmt::format("sequence {} of a batch of {}", sequence, all));
        }
        made.sequences.push_back(part_of(batch, sequence, layout.part));
    }
    if (made.form == Form::padded) {
        const auto length = padded_length(batch, made.sequences, layout.padding);
        if (!length) return std::unexpected(length.error());
        made.length = *length;
    }
    for (Placed& one : made.sequences) {
        one.first_row = made.rows;
        made.rows += made.form == Form::packed   ? one.tokens
                     : made.form == Form::padded ? made.length
                                                 : 1;
    }
    return made;
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
                       fmt::format("'{}' has no value for each sequence", made.name_));
    }
    made.to_ = column.dtype.value_or(made.from_);
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
            fmt::format("column '{}' has no row for each token: read it sequence by sequence",
                        name_));
    }
    const ColumnView* first = nullptr;
    found_.reserve(placement_->sequences.size());
    const auto& sequences = placement_->sequences;
    for (std::size_t i = 0; i < sequences.size(); i++) {
        constexpr std::size_t ahead = 8;
        const Placed& placed = sequences[i];
        if (i + ahead < sequences.size()) {
            prefetch_to_read(batch_->sequences()[sequences[i + ahead].sequence].view, view_bytes);
        }
        const ColumnView* found = batch_->sequences()[placed.sequence].view.find(column_.column);
        found_.push_back(found == nullptr ? Found{} : Found{found->data.data(), found->shape[0]});
        if (found == nullptr) continue;
        if (first == nullptr) first = found;
        if (!same_rows(*first, *found)) {
            return refused(Errc::invalid_argument,
                           fmt::format("column '{}' of {} has another dtype or inner shape than "
                                       "in the sequences before it",
                                       name_, who(*batch_, placed.sequence)));
        }
    }
    const bool known = declared.accepts == Accepts::exact &&
                       std::ranges::find(declared.dims, 0U) == declared.dims.end();
    if (first == nullptr && column_.missing && known) {
        from_ = declared.dtype;  // as if each had rows of such numbers
        for (const std::uint32_t extent : declared.dims) inner_.push_back(extent);
    } else if (first == nullptr) {
        return refused(Errc::invalid_argument,
                       fmt::format("no sequence of the batch carries column '{}'", name_));
    } else {
        from_ = first->dtype;
        inner_.assign(first->shape.begin() + 1, first->shape.begin() + first->dims);
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
                       fmt::format("the target of column '{}' has {} B, and {} are needed", name_,
                                   column_.to.size(), needed));
    }
    if (reinterpret_cast<std::uintptr_t>(column_.to.data()) % to_.bytes() != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("the target of column '{}' is not aligned to its {}", name_,
                                   to_.to_string()));
    }
    return {};
}

std::unexpected<Error> ColumnPlan::lacking(std::size_t i) const {
    return refused(Errc::invalid_argument,
                   fmt::format("{} does not carry column '{}': say what stands for a missing one",
                               who(*batch_, placement_->sequences[i].sequence), name_));
}

std::unexpected<Error> ColumnPlan::out_of_range(std::size_t i) const {
    return refused(
        Errc::invalid_argument,
        fmt::format("column '{}' of {} has, or is to be filled with, a value that is "
                    "out of the range of {}",
                    name_, who(*batch_, placement_->sequences[i].sequence), to_.to_string()));
}

}  // namespace rollring::gathering
