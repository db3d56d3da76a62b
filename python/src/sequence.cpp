#include "sequence.hpp"

#include <bitset>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "fields.hpp"

namespace rollring::python {
namespace {

struct ViewHelpers {
    nb::object array;
    nb::object decoded;
    std::bitset<static_cast<std::size_t>(Std::count)> texts;  // by the column's number
};
ViewHelpers& view_helpers() {
    static auto* made = new ViewHelpers();  // never freed: used while the interpreter ends
    return *made;
}

// Standard columns have these numbers in every ring.
bool is_text(std::size_t column) {
    return column < view_helpers().texts.size() && view_helpers().texts[column];
}

class SequenceView {
  public:
    SequenceView(std::shared_ptr<Lent> lent, std::size_t index)
        : lent_(std::move(lent)), index_(index) {}

    [[nodiscard]] std::size_t index() const { return index_; }
    [[nodiscard]] bool withheld() const { return sequence().withheld; }
    [[nodiscard]] bool leased() const { return lent_->leased(); }
    [[nodiscard]] const TrajectoryView& view() const { return sequence().view; }

    // None if the record does not have it.
    [[nodiscard]] nb::object column(std::size_t number) const {
        const ColumnView* const found = view().find(static_cast<std::uint16_t>(number));
        if (found == nullptr) return nb::none();
        if (is_text(number)) {
            const auto* const bytes = reinterpret_cast<const char*>(found->data.data());
            return view_helpers().decoded(lent_->schema().columns()[number].name,
                                          nb::bytes(bytes, found->data.size()),
                                          view().meta().user_is_text);
        }
        auto* const bytes = const_cast<std::byte*>(found->data.data());
        return view_helpers().array(std::make_unique<Window>(
            lent_, *found, index_, std::span(bytes, found->data.size()), false));
    }
    [[nodiscard]] nb::object named(std::string_view name) const {
        static_cast<void>(sequence());  // raises if it is no longer leased
        const auto number = lent_->schema().find(name);
        if (!number) raise("no_column", "this ring has no column '" + std::string(name) + "'");
        return column(*number);
    }
    [[nodiscard]] nb::list columns() const {
        nb::list made;
        for (std::uint16_t number = 0; const Column& declared : lent_->schema().columns()) {
            if (view().find(number++) != nullptr) made.append(text(declared.name));
        }
        return made;
    }
    [[nodiscard]] nb::dict fields() const {
        nb::dict made = fields_of(view());
        made["group"] = sequence().group;
        made["member"] = sequence().member;
        made["withheld"] = sequence().withheld;
        return made;
    }

  private:
    [[nodiscard]] const Sequence& sequence() const { return lent_->shown().sequences()[index_]; }
    std::shared_ptr<Lent> lent_;
    std::size_t index_;
};

}  // namespace

nb::list made_sequences(const std::shared_ptr<Lent>& lent, nb::handle kind) {
    nb::list made;
    const std::size_t count = lent->shown().sequences().size();
    for (std::size_t i = 0; i < count; i++) {
        const nb::object one = nb::inst_alloc(kind);
        new (nb::inst_ptr<SequenceView>(one)) SequenceView(lent, i);
        nb::inst_mark_ready(one);
        made.append(one);
    }
    return made;
}

void set_view_helpers(nb::object array, nb::object decoded, nb::object texts) {
    ViewHelpers& to = view_helpers();
    to.array = std::move(array);
    to.decoded = std::move(decoded);
    for (const nb::handle name : texts) {
        const auto column = Schema::standard().find(nb::cast<std::string>(name));
        to.texts.set(column.value());
    }
}

void bind_sequence(nb::module_& module) {
    nb::class_<SequenceView> made(module, "SequenceView");
    made.def_prop_ro("index", &SequenceView::index)
        .def_prop_ro("withheld", &SequenceView::withheld)
        .def_prop_ro("columns", &SequenceView::columns)
        .def("_leased", &SequenceView::leased)
        .def("_fields", &SequenceView::fields)
        .def("__getitem__", &SequenceView::named);
    for (const Field& field : record_fields) {
        made.def_prop_ro(field.name,
                         [of = field.of](const SequenceView& one) { return of(one.view()); });
    }
    for (std::size_t number = 0; const Column& column : Schema::standard().columns()) {
        const std::size_t mine = number++;
        if (mine == static_cast<std::size_t>(Std::instance_id)) continue;  // a field
        made.def_prop_ro(column.name.c_str(),
                         [mine](const SequenceView& one) { return one.column(mine); });
    }
    module.def("set_view_helpers", &set_view_helpers);
}

}  // namespace rollring::python
