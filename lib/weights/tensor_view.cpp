#include "tensor_view.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace rollring::weights {
namespace {

// a + b * c, or the largest number if that is more.
std::uint64_t add_product(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    std::uint64_t product = 0;
    std::uint64_t sum = 0;
    if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum)) {
        return std::numeric_limits<std::uint64_t>::max();
    }
    return sum;
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
        strides[dim] = stride;
        stride *= shape[dim];
    }
    return strides;
}

}  // namespace

Result<ViewCopies> ViewCopies::make(const WeightTensor& tensor, const PackedTensor& published) {
    const std::vector<std::int64_t>& shape = tensor.shape;
    const TensorView& view = *tensor.view;
    if (!view.strides.empty() && view.strides.size() != shape.size()) {
        return refused(Errc::invalid_argument, tensor,
                       "strides of its view and shape differ in "
                       "length");
    }
    if (std::ranges::any_of(view.strides, [](std::int64_t stride) { return stride < 0; })) {
        return refused(Errc::unsupported, tensor, "its view has negative strides");
    }
    ViewCopies made(tensor);
    made.empty_ = std::ranges::find(shape, 0) != shape.end();
    if (made.empty_) return made;  // its view means nothing
    const auto to = tensor.strides.empty() ? row_major(shape) : tensor.strides;
    const auto from = view.strides.empty() ? row_major(shape) : view.strides;
    std::uint64_t last = view.offset;
    for (std::size_t dim = 0; dim < shape.size(); dim++) {
        made.dims_.push_back({static_cast<std::uint64_t>(shape[dim]),
                              static_cast<std::uint64_t>(to[dim]),
                              static_cast<std::uint64_t>(from[dim])});
        last = add_product(last, made.dims_.back().extent - 1, made.dims_.back().from);
    }
    if (last >= published.elements) {
        return refused(
            Errc::layout_mismatch, tensor,
            fmt::format("its view reaches element {}, {} are published", last, published.elements));
    }
    made.offset_ = view.offset;
    std::ranges::sort(made.dims_, std::ranges::greater{},
                      [](const Dim& dim) { return std::pair(dim.to, dim.from); });
    join(made.dims_);
    if (made.dims_.size() > CopyJob::dims_max) {
        return refused(Errc::unsupported, tensor,
                       "its view has more than 6 dimensions that are not contiguous");
    }
    return made;
}

void ViewCopies::join(std::vector<Dim>& dims) {
    std::vector<Dim> joined;
    for (const Dim& dim : dims) {
        if (dim.extent == 1) continue;
        if (!joined.empty() && joined.back().to == dim.to * dim.extent &&
            joined.back().from == dim.from * dim.extent) {
            joined.back() = {joined.back().extent * dim.extent, dim.to, dim.from};
        } else {
            joined.push_back(dim);
        }
    }
    dims = std::move(joined);
}

CopyJob ViewCopies::copy_of(const Box& box, const Piece& piece) const {
    std::uint64_t to = 0;
    std::uint64_t from = offset_ - piece.first_element;  // modulo 2^64 until the box is added
    std::uint64_t elements = 1;
    std::vector<Dim> dims = dims_;
    for (std::size_t dim = 0; dim < dims.size(); dim++) {
        to += box.begin[dim] * dims[dim].to;
        from += box.begin[dim] * dims[dim].from;
        dims[dim].extent = box.end[dim] - box.begin[dim];
        elements *= dims[dim].extent;
    }
    join(dims);
    CopyJob job{.tensor = static_cast<std::byte*>(tensor_->data) + to * element_bytes_,
                .elements = elements,
                .slot_offset = piece.slot_offset + from * element_bytes_,
                .element_bytes = element_bytes_,
                .view = true};
    const bool contiguous =
        dims.empty() || (dims.size() == 1 && dims[0].to == 1 && dims[0].from == 1);
    if (contiguous) return job;
    for (const Dim& dim : dims) {
        job.shape.push_back(static_cast<std::int64_t>(dim.extent));
        job.strides.push_back(static_cast<std::int64_t>(dim.to));
        job.packed_strides.push_back(static_cast<std::int64_t>(dim.from));
    }
    return job;
}

// Finds the indices whose elements lie in a piece, as boxes: dimension by dimension, beginning with
// the one whose neighbours are furthest apart in the published tensor. A range completely inside is
// a box; only a range that an end of the piece cuts is divided further: at most two indices of a
// dimension, if the view is a narrowed, transposed or split tensor.
class ViewCopies::Cutter {
  public:
    Cutter(const ViewCopies& view, const Piece& piece, std::vector<CopyJob>& jobs)
        : view_(view),
          piece_(piece),
          jobs_(jobs),
          begin_(piece.first_element),
          end_(piece.first_element + piece.elements) {
        const std::vector<Dim>& dims = view.dims_;
        order_.resize(dims.size());
        for (std::size_t i = 0; i < order_.size(); i++) order_[i] = i;
        std::ranges::sort(order_, std::ranges::greater{}, [&](std::size_t dim) {
            return std::pair(dims[dim].from, order_.size() - dim);
        });
        reach_.assign(order_.size() + 1, 0);
        for (std::size_t level = order_.size(); level-- > 0;) {
            const Dim& dim = dims[order_[level]];
            reach_[level] = reach_[level + 1] + (dim.extent - 1) * dim.from;
        }
        box_.begin.assign(dims.size(), 0);
        for (const Dim& dim : dims) box_.end.push_back(dim.extent);
    }

    // False: too many.
    bool run() { return look(0, view_.offset_); }

  private:
    static constexpr std::size_t looks_max = 4096;

    // The dimensions before `level` are decided; their first element is `at`.
    bool look(std::size_t level, std::uint64_t at) {
        if (++looks_ > looks_max) return false;
        const std::uint64_t last = at + reach_[level];
        if (last < begin_ || at >= end_) return true;
        if (at >= begin_ && last < end_) {
            jobs_.push_back(view_.copy_of(box_, piece_));
            return true;
        }
        return look_into(level, at);
    }

    // An end of the piece lies between the first and the last element.
    bool look_into(std::size_t level, std::uint64_t at) {
        const std::size_t dim = order_[level];
        const std::uint64_t extent = view_.dims_[dim].extent;
        const std::uint64_t step = view_.dims_[dim].from;  // not 0, or there would be no such end
        const std::uint64_t reach = reach_[level + 1];
        const auto steps_up_to = [&](std::uint64_t element) {  // that begin before it
            return element <= at ? 0 : std::min(extent, (element - at - 1) / step + 1);
        };
        const std::uint64_t touched = at + reach >= begin_ ? 0 : steps_up_to(begin_ - reach);
        const std::uint64_t beyond = steps_up_to(end_);
        const std::uint64_t whole = steps_up_to(begin_);
        const std::uint64_t whole_end = end_ <= reach ? 0 : steps_up_to(end_ - reach);
        const std::uint64_t cut_end = std::min(whole, beyond);
        if (!look_at_each(level, at, touched, cut_end)) return false;
        if (whole < whole_end) {
            box_.begin[dim] = whole;
            box_.end[dim] = whole_end;
            jobs_.push_back(view_.copy_of(box_, piece_));
        }
        const bool fine = look_at_each(level, at, std::max(whole, whole_end), beyond);
        box_.begin[dim] = 0;
        box_.end[dim] = extent;
        return fine;
    }

    bool look_at_each(std::size_t level, std::uint64_t at, std::uint64_t index, std::uint64_t end) {
        const std::size_t dim = order_[level];
        for (; index < end; index++) {
            box_.begin[dim] = index;
            box_.end[dim] = index + 1;
            if (!look(level + 1, at + index * view_.dims_[dim].from)) return false;
        }
        return true;
    }

    const ViewCopies& view_;
    const Piece& piece_;
    std::vector<CopyJob>& jobs_;
    std::uint64_t begin_;
    std::uint64_t end_;
    std::vector<std::size_t> order_;    // of dimensions
    std::vector<std::uint64_t> reach_;  // from first to last element, over dimensions from here on
    Box box_;
    std::size_t looks_ = 0;
};

Result<void> ViewCopies::cut(const Piece& piece, std::vector<CopyJob>& jobs) const {
    if (empty_ || Cutter(*this, piece, jobs).run()) return {};
    return refused(
        Errc::unsupported, *tensor_,
        "its view needs too many copies across parts: raise slot_bytes of the publisher");
}

}  // namespace rollring::weights
