#include "gathering.hpp"

#include <cstring>

#include "errors.hpp"

namespace rollring::python {

LayoutOf::LayoutOf(const LayoutArgs& args) {
    const auto& [form, part, order, left, length, multiple_of] = args;
    layout.form = static_cast<Form>(form);
    layout.part = static_cast<Part>(part);
    layout.padding = {
        .side = left ? Side::left : Side::right, .length = length, .multiple_of = multiple_of};
    if (!order) return;
    order_.resize(order->size() / sizeof(std::uint32_t));
    if (!order_.empty()) std::memcpy(order_.data(), order->c_str(), order->size());
    layout.order = order_;
}

GatherColumn column_of(const Schema& schema, const ColumnArgs& args) {
    const auto& [name, dtype, missing, pad, shift, beyond, address, bytes] = args;
    GatherColumn made{.dtype = DType::parse(dtype),
                      .missing = missing,
                      .pad = pad,
                      .shift = shift,
                      .beyond = beyond,
                      .to = {reinterpret_cast<std::byte*>(address), bytes}};
    if (const auto found = schema.find(name)) {
        made.column = *found;
    } else if (name == "position_ids") {
        made.source = Source::position_ids;
    } else if (name == "batch.advantages") {
        made.source = Source::advantages;
    } else if (name == "batch.rewards") {
        made.source = Source::rewards;
    } else {
        raise("no_column", "this ring has no column '" + name + "'");
    }
    return made;
}

Gatherers::~Gatherers() {
    if (forks_ == fork_number()) return;
    // A child has neither the threads nor the GPU of its parent: what is left of them stays.
    static auto& kept = *new std::vector<std::shared_ptr<Gatherer>>();
    for (auto& [gpu, one] : all_) kept.push_back(std::move(one.gatherer));
}

}  // namespace rollring::python
