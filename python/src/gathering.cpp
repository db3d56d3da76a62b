#include "gathering.hpp"

#include <cstring>
#include <string>

#include "errors.hpp"

namespace rollring::python {

namespace {

template <class T>
T field(nb::handle args, const char* name) {
    return nb::cast<T>(args.attr(name));
}

}  // namespace

LayoutOf::LayoutOf(nb::handle args) {
    layout.form = static_cast<Form>(field<int>(args, "form"));
    layout.part = static_cast<Part>(field<int>(args, "part"));
    layout.padding = {.side = field<bool>(args, "left") ? Side::left : Side::right,
                      .length = field<std::uint64_t>(args, "length"),
                      .multiple_of = field<std::uint64_t>(args, "multiple_of")};
    const auto order = field<std::optional<nb::bytes>>(args, "order");
    if (!order) return;
    order_.resize(order->size() / sizeof(std::uint32_t));
    if (!order_.empty()) std::memcpy(order_.data(), order->c_str(), order->size());
    layout.order = order_;
}

GatherColumn column_of(const Schema& schema, nb::handle args) {
    const auto name = field<std::string>(args, "column");
    GatherColumn made{.dtype = DType::parse(field<std::string>(args, "dtype")),
                      .missing = field<std::optional<double>>(args, "missing"),
                      .pad = field<double>(args, "pad"),
                      .shift = field<std::int32_t>(args, "shift"),
                      .beyond = field<double>(args, "beyond"),
                      .to = {reinterpret_cast<std::byte*>(field<std::uintptr_t>(args, "address")),
                             field<std::uint64_t>(args, "nbytes")}};
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
    // A child has neither the threads nor the GPU of its parent: its copies stay as they are.
    static auto& kept = *new std::vector<std::shared_ptr<Gatherer>>();
    for (auto& [gpu, one] : all_) kept.push_back(std::move(one.gatherer));
}

}  // namespace rollring::python
