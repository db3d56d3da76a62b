#include "rollring/columns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rollring/convert.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

std::string who(const Sequences& batch, std::size_t sequence) {
    const TrajectoryView& view = batch.sequences()[sequence].view;
    return fmt::format("sequence {} (instance '{}', repetition {})", sequence,
                       printable(view.instance_id()), view.meta().repetition_id);
}

bool same_rows(const ColumnView& a, const ColumnView& b) {
    return a.dtype == b.dtype && a.dims == b.dims &&
           std::equal(a.shape.begin() + 1, a.shape.begin() + a.dims, b.shape.begin() + 1);
}

// A column of a batch, checked: every sequence that has it has rows of the same kind.
struct BatchColumn {
    const Sequences& batch;
    std::string_view name;
    std::uint16_t column;
    ColumnView rows;  // of the first sequence that has it

    static Result<BatchColumn> of(const Sequences& batch, const Schema& schema,
                                  std::uint16_t column) {
        if (!batch.leased()) {
            return refused(Errc::not_leased,
                           "the batch was acknowledged or given back: copy its columns before");
        }
        if (column >= schema.columns().size()) {
            return refused(Errc::invalid_argument,
                           fmt::format("the schema has no column {}", column));
        }
        const Column& declared = schema.columns()[column];
        if (declared.per != Per::token) {
            return refused(Errc::invalid_argument,
                           fmt::format("column '{}' has no row for each token: read it sequence by "
                                       "sequence",
                                       declared.name));
        }
        const auto sequences = batch.sequences();
        const ColumnView* first = nullptr;
        for (std::size_t i = 0; i < sequences.size(); i++) {
            const ColumnView* found = sequences[i].view.find(column);
            if (found == nullptr) continue;
            if (first == nullptr) first = found;
            if (!same_rows(*first, *found)) {
                return refused(
                    Errc::invalid_argument,
                    fmt::format("column '{}' of {} has another dtype or inner shape than "
                                "in the sequences before it",
                                declared.name, who(batch, i)));
            }
        }
        if (first == nullptr) {
            return refused(
                Errc::invalid_argument,
                fmt::format("no sequence of the batch carries column '{}'", declared.name));
        }
        return BatchColumn{batch, declared.name, column, *first};
    }

    [[nodiscard]] std::uint64_t row_elements() const {
        std::uint64_t count = 1;
        for (std::size_t i = 1; i < rows.dims; i++) count *= rows.shape[i];
        return count;
    }
};

// What is copied where: `before` and `after` are elements of padding.
struct Target {
    std::uint64_t first = 0;  // element of the array
    std::uint64_t before = 0;
    std::uint64_t after = 0;
};

// Sequences of roughly equal bytes go to each thread.
constexpr std::uint64_t bytes_per_thread = std::uint64_t{4} << 20;
constexpr unsigned threads_max = 16;

unsigned threads_for(std::uint64_t bytes, std::uint32_t asked) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    const unsigned most = asked > 0 ? asked : std::min(cores, threads_max);
    return static_cast<unsigned>(std::clamp<std::uint64_t>(bytes / bytes_per_thread, 1, most));
}

class Copying {
  public:
    Copying(const BatchColumn& from, std::span<std::byte> to, const ColumnCopy& copy, double pad)
        : from_(from),
          to_(to),
          dtype_(copy.dtype.value_or(from.rows.dtype)),
          missing_(copy.missing),
          pad_(pad),
          row_(from.row_elements()) {}

    // target(i) is where sequence i goes.
    template <class TargetOf>
    Result<void> run(std::uint64_t elements, std::uint32_t threads, TargetOf target) {
        if (!can_convert(from_.rows.dtype, dtype_)) {
            return refused(
                Errc::invalid_argument,
                fmt::format("column '{}' is {}: it cannot be converted to {}", from_.name,
                            from_.rows.dtype.to_string(), dtype_.to_string()));
        }
        if (to_.size() != elements * dtype_.bytes()) {
            return refused(Errc::invalid_argument,
                           fmt::format("the target of column '{}' has {} B, and {} are needed",
                                       from_.name, to_.size(), elements * dtype_.bytes()));
        }
        if (reinterpret_cast<std::uintptr_t>(to_.data()) % dtype_.bytes() != 0) {
            return refused(Errc::invalid_argument,
                           fmt::format("the target of column '{}' is not aligned to its {}",
                                       from_.name, dtype_.to_string()));
        }
        const std::size_t count = from_.batch.sequences().size();
        const unsigned workers = threads_for(to_.size(), threads);
        const auto work = [&] {
            for (std::size_t i = next_++; i < count; i = next_++) {
                if (!one(i, target(i))) note_bad(i);
            }
        };
        std::vector<std::jthread> helpers;
        for (unsigned i = 1; i < std::min<std::size_t>(workers, count); i++) {
            try {
                helpers.emplace_back(work);
            } catch (const std::system_error&) {
                break;  // fewer do it as well
            }
        }
        work();
        helpers.clear();
        if (bad_ == none) return {};
        return refused(Errc::invalid_argument, problem(bad_));
    }

  private:
    bool one(std::size_t i, const Target& target) {
        const ColumnView* column = from_.batch.sequences()[i].view.find(from_.column);
        const std::uint64_t elements =
            std::uint64_t{from_.batch.sequences()[i].view.n_tokens()} * row_;
        std::byte* at = to_.data() + target.first * dtype_.bytes();
        bool good = fill(dtype_, pad_, at, target.before);
        at += target.before * dtype_.bytes();
        if (column != nullptr) {
            good &= convert(column->dtype, column->data.data(), dtype_, at, elements);
        } else {
            good &= elements == 0 || (missing_ && fill(dtype_, *missing_, at, elements));
        }
        at += elements * dtype_.bytes();
        return fill(dtype_, pad_, at, target.after) && good;
    }
    void note_bad(std::size_t i) {
        std::size_t known = bad_;
        while (i < known && !bad_.compare_exchange_weak(known, i)) {
        }
    }
    [[nodiscard]] std::string problem(std::size_t i) const {
        if (from_.batch.sequences()[i].view.find(from_.column) == nullptr && !missing_) {
            return fmt::format("{} does not carry column '{}': say what stands for a missing one",
                               who(from_.batch, i), from_.name);
        }
        return fmt::format(
            "column '{}' of {} has, or is to be filled with, a value that is out of "
            "the range of {}",
            from_.name, who(from_.batch, i), dtype_.to_string());
    }

    static constexpr std::size_t none = ~std::size_t{0};
    const BatchColumn& from_;
    std::span<std::byte> to_;
    DType dtype_;
    std::optional<double> missing_;
    double pad_;
    std::uint64_t row_;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<std::size_t> bad_ = none;
};

ArrayShape shape_of(const BatchColumn& from, std::initializer_list<std::uint64_t> outer) {
    ArrayShape shape{.dtype = from.rows.dtype};
    for (const std::uint64_t length : outer) shape.shape[shape.dims++] = length;
    for (std::size_t i = 1; i < from.rows.dims; i++) shape.shape[shape.dims++] = from.rows.shape[i];
    return shape;
}

ArrayShape packed_of(const BatchColumn& from) {
    return shape_of(from, {static_cast<std::uint64_t>(from.batch.cu_seqlens().back())});
}

Result<ArrayShape> padded_of(const BatchColumn& from, const Padding& padding) {
    const auto sequences = from.batch.sequences();
    std::size_t longest = 0;
    for (std::size_t i = 1; i < sequences.size(); i++) {
        if (sequences[i].view.n_tokens() > sequences[longest].view.n_tokens()) longest = i;
    }
    const std::uint64_t needed = sequences[longest].view.n_tokens();
    std::uint64_t length = padding.length == 0 ? needed : padding.length;
    if (padding.multiple_of == 0 || padding.multiple_of > (std::uint64_t{1} << 32) ||
        length > (std::uint64_t{1} << 32)) {
        return refused(Errc::invalid_argument,
                       fmt::format("padding to a length of {}, a multiple of {}: use 1 to 2^32",
                                   length, padding.multiple_of));
    }
    length = (length + padding.multiple_of - 1) / padding.multiple_of * padding.multiple_of;
    if (length < needed) {
        return refused(
            Errc::invalid_argument,
            fmt::format("{} has {} tokens, more than the length of {} that was asked for",
                        who(from.batch, longest), needed, length));
    }
    return shape_of(from, {sequences.size(), length});
}

}  // namespace

Result<ArrayShape> packed_shape(const Sequences& batch, const Schema& schema,
                                std::uint16_t column) {
    const auto from = BatchColumn::of(batch, schema, column);
    if (!from) return std::unexpected(from.error());
    return packed_of(*from);
}

Result<ArrayShape> padded_shape(const Sequences& batch, const Schema& schema, std::uint16_t column,
                                const Padding& padding) {
    const auto from = BatchColumn::of(batch, schema, column);
    if (!from) return std::unexpected(from.error());
    return padded_of(*from, padding);
}

Result<void> pack_column(const Sequences& batch, const Schema& schema, std::uint16_t column,
                         std::span<std::byte> to, const ColumnCopy& copy) {
    const auto from = BatchColumn::of(batch, schema, column);
    if (!from) return std::unexpected(from.error());
    const std::uint64_t row = from->row_elements();
    return Copying(*from, to, copy, 0)
        .run(packed_of(*from).elements(), copy.threads, [&](std::size_t i) {
            return Target{.first = static_cast<std::uint64_t>(batch.cu_seqlens()[i]) * row};
        });
}

Result<void> pad_column(const Sequences& batch, const Schema& schema, std::uint16_t column,
                        std::span<std::byte> to, const Padding& padding, const ColumnCopy& copy) {
    const auto from = BatchColumn::of(batch, schema, column);
    if (!from) return std::unexpected(from.error());
    const auto shape = padded_of(*from, padding);
    if (!shape) return std::unexpected(shape.error());
    const std::uint64_t row = from->row_elements();
    const std::uint64_t length = shape->shape[1] * row;
    return Copying(*from, to, copy, padding.value)
        .run(shape->elements(), copy.threads, [&](std::size_t i) {
            const std::uint64_t rest = length - batch.sequences()[i].view.n_tokens() * row;
            const bool left = padding.side == Side::left;
            return Target{.first = i * length, .before = left ? rest : 0, .after = left ? 0 : rest};
        });
}

}  // namespace rollring
