#include "copy_rows.hpp"

#include <algorithm>
#include <tuple>

namespace rollring::shards {
namespace {

// Rows at regular distances.
struct EvenRun {
    const CopyRow* first = nullptr;
    std::int64_t count = 0;
    std::int64_t from_step = 0;
    std::int64_t to_step = 0;
};

class RowMerger {
  public:
    RowMerger(const CopyRows& rows, std::size_t dims_max) : rows_(rows), dims_max_(dims_max) {}

    CopyRows run() {
        for (const CopyRow& row : rows_.rows) {
            if (!extends(row)) {
                finish();
                run_ = {&row, 1};
            }
            last_ = &row;
        }
        finish();
        return std::move(made_);
    }

  private:
    bool extends(const CopyRow& row) {
        if (run_.count == 0) return false;
        const CopyRow& first = *run_.first;
        const bool alike = row.to == first.to && row.from == first.from && first.dims < dims_max_ &&
                           std::ranges::equal(rows_.dims_of(row), rows_.dims_of(first));
        if (!alike || row.from_offset < last_->from_offset) return false;
        const auto from_step = static_cast<std::int64_t>(row.from_offset - last_->from_offset);
        const auto to_step = static_cast<std::int64_t>(row.to_offset - last_->to_offset);
        if (run_.count > 1 && (from_step != run_.from_step || to_step != run_.to_step)) {
            return false;
        }
        run_.from_step = from_step;
        run_.to_step = to_step;
        run_.count++;
        return true;
    }

    void finish() {
        if (run_.count == 0) return;
        const auto dims = rows_.dims_of(*run_.first);
        scratch_.assign(dims.begin(), dims.end());
        if (run_.count > 1) scratch_.push_back({run_.count, run_.from_step, run_.to_step});
        made_.add(*run_.first, scratch_);
    }

    const CopyRows& rows_;
    std::size_t dims_max_;
    EvenRun run_;
    const CopyRow* last_ = nullptr;
    std::vector<CopyDim> scratch_;
    CopyRows made_;
};

}  // namespace

void CopyRows::add(CopyRow row, std::span<CopyDim> unsorted) {
    std::ranges::sort(unsorted, [](const CopyDim& a, const CopyDim& b) {
        return std::tie(a.to, a.from) > std::tie(b.to, b.from);
    });
    row.first_dim = dims.size();
    for (const CopyDim& dim : unsorted) {
        CopyDim* const outer = dims.size() == row.first_dim ? nullptr : &dims.back();
        if (outer != nullptr && outer->to == dim.extent * dim.to &&
            outer->from == dim.extent * dim.from) {
            *outer = {outer->extent * dim.extent, dim.from, dim.to};
        } else {
            dims.push_back(dim);
        }
    }
    row.dims = static_cast<std::uint32_t>(dims.size() - row.first_dim);
    rows.push_back(row);
}

CopyRows merge(const CopyRows& rows, std::size_t dims_max) {
    CopyRows now = rows;
    const auto place = [](const CopyRow& row) { return std::tie(row.to, row.from, row.to_offset); };
    const auto earlier = [&](const CopyRow& a, const CopyRow& b) { return place(a) < place(b); };
    if (!std::ranges::is_sorted(now.rows, earlier)) std::ranges::sort(now.rows, earlier);
    for (;;) {
        CopyRows merged = RowMerger(now, dims_max).run();
        if (merged.rows.size() == now.rows.size()) return merged;
        now = std::move(merged);
    }
}

}  // namespace rollring::shards
