// One column at a time: what gather() does for one.

#include "rollring/columns.hpp"

#include "rollring/gather.hpp"

namespace rollring {
namespace {

GatherColumn one(std::uint16_t column, std::span<std::byte> to, const ColumnCopy& copy) {
    return {.column = column, .dtype = copy.dtype, .missing = copy.missing, .to = to};
}

}  // namespace

Result<ArrayShape> packed_shape(const Sequences& batch, const Schema& schema,
                                std::uint16_t column) {
    return gathered_shape(batch, schema, {.column = column}, {});
}

Result<ArrayShape> padded_shape(const Sequences& batch, const Schema& schema, std::uint16_t column,
                                const Padding& padding) {
    return gathered_shape(batch, schema, {.column = column},
                          {.form = Form::padded, .padding = padding});
}

Result<void> pack_column(const Sequences& batch, const Schema& schema, std::uint16_t column,
                         std::span<std::byte> to, const ColumnCopy& copy) {
    const GatherColumn target = one(column, to, copy);
    return gather(batch, schema, {&target, 1}, {}, copy.threads);
}

Result<void> pad_column(const Sequences& batch, const Schema& schema, std::uint16_t column,
                        std::span<std::byte> to, const Padding& padding, const ColumnCopy& copy) {
    const GatherColumn target = one(column, to, copy);
    return gather(batch, schema, {&target, 1}, {.form = Form::padded, .padding = padding},
                  copy.threads);
}

}  // namespace rollring
