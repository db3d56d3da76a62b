#include "store.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "memory.hpp"
#include "released.hpp"
#include "rollring/store.hpp"
#include "turn.hpp"

namespace rollring::python {
namespace {

constexpr std::int64_t slice_ns = 100'000'000;

// Calls step(deadline) without the GIL, in slices between which Ctrl-C ends it, until it says
// something else than `waiting` or the deadline is over.
template <class Step>
Result<void> in_slices(std::optional<double> timeout, Errc waiting, Step step) {
    const Deadline deadline = deadline_of(timeout);
    while (true) {
        const Deadline end = Deadline::after_ns(slice_ns);
        const bool last = deadline.at_ns <= end.at_ns;
        auto done = [&] {
            const Released released;
            return step(last ? deadline : end);
        }();
        if (done || last || done.error().code != waiting) return done;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

class PyStore {
  public:
    PyStore(const std::string& name, std::uint64_t capacity, std::uint32_t lanes, bool make,
            const std::string& process, double timeout) {
        const Deadline deadline = deadline_of(timeout);
        StoreOptions options{.name = process,
                             .make = make,
                             .capacity_bytes = capacity,
                             .lanes = lanes,
                             .attach_timeout = std::chrono::nanoseconds(slice_ns)};
        while (true) {
            auto opened = [&] {
                const Released released;
                return Store::open(name, options);
            }();
            if (opened) {
                store_ = std::make_shared<Store>(std::move(*opened));
                return;
            }
            const Errc code = opened.error().code;
            const bool waits = code == Errc::not_found || code == Errc::not_ready;
            if (!waits || deadline.passed()) raise(opened.error());
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
    }

    // Each value as (key, column, address, dtype, shape, tag).
    std::vector<std::uint64_t> put(nb::list given, std::optional<double> timeout) {
        const auto store = open();
        std::vector<StoreValue> values;
        values.reserve(given.size());
        for (const nb::handle each : given) {
            const auto value = nb::cast<nb::tuple>(each);
            StoreValue made{.key = nb::cast<std::string_view>(value[0]),
                            .column = nb::cast<std::string_view>(value[1])};
            made.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(value[2]));
            made.form.dtype = dtype_named(nb::cast<std::string_view>(value[3]));
            const auto shape = nb::cast<nb::tuple>(value[4]);
            made.form.dims = static_cast<std::uint8_t>(shape.size());
            for (std::size_t i = 0; i < std::min<std::size_t>(shape.size(), 4); i++) {
                made.form.shape[i] = nb::cast<std::uint32_t>(shape[i]);
            }
            made.form.tag = nb::cast<std::uint16_t>(value[5]);
            values.push_back(made);
        }
        std::vector<Location> at(values.size());
        value_or_raise(in_slices(timeout, Errc::store_full, [&](Deadline deadline) {
            return store->put(values, at, deadline);
        }));
        std::vector<std::uint64_t> numbers;
        numbers.reserve(at.size());
        for (const Location& each : at) numbers.push_back(each.number);
        return numbers;
    }

    // Of each value (dtype, shape, tag, bytes).
    nb::list look(const std::vector<std::uint64_t>& at) const {
        const auto store = open();
        std::vector<ValueForm> forms;
        forms.reserve(at.size());
        value_or_raise([&]() -> Result<void> {
            const Released released;
            for (const std::uint64_t number : at) {
                auto form = store->look({number});
                if (!form) return std::unexpected(form.error());
                forms.push_back(*form);
            }
            return {};
        }());
        nb::list all;
        DType last{};
        nb::object last_name;
        for (const ValueForm& form : forms) {
            if (!last_name.is_valid() || form.dtype != last) {
                last_name = nb::cast(form.dtype.to_string());
                last = form.dtype;
            }
            nb::list shape;
            for (std::uint8_t i = 0; i < form.dims; i++) shape.append(form.shape[i]);
            all.append(nb::make_tuple(last_name, nb::tuple(shape), form.tag, form.bytes()));
        }
        return all;
    }

    // Each value to its address, with so many bytes.
    void read(const std::vector<std::uint64_t>& at, const std::vector<std::uintptr_t>& to,
              const std::vector<std::uint64_t>& bytes) const {
        const auto store = open();
        if (at.size() != to.size() || at.size() != bytes.size()) {
            raise("invalid_argument", "each value has an address and its bytes");
        }
        value_or_raise([&]() -> Result<void> {
            const Released released;
            for (std::size_t i = 0; i < at.size(); i++) {
                auto* const begin = reinterpret_cast<std::byte*>(to[i]);
                if (auto read = store->read({at[i]}, {begin, bytes[i]}); !read) return read;
            }
            return {};
        }());
    }
    Memory memory(std::uint64_t at, std::uint64_t bytes) const {
        Memory made(bytes);
        value_or_raise(open()->read({at}, {made.data(), bytes}));
        return made;
    }

    void clear(const std::vector<std::uint64_t>& numbers, std::optional<double> timeout) {
        const auto store = open();
        std::vector<Location> at;
        at.reserve(numbers.size());
        for (const std::uint64_t number : numbers) at.push_back({number});
        value_or_raise(in_slices(timeout, Errc::timed_out,
                                 [&](Deadline deadline) { return store->clear(at, deadline); }));
    }
    void clear_keys(const std::vector<std::string>& keys, std::optional<double> timeout) {
        const auto store = open();
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        value_or_raise(in_slices(timeout, Errc::timed_out, [&](Deadline deadline) {
            return store->clear_keys(views, deadline);
        }));
    }

    nb::dict stat() const {
        const StoreStat now = open()->stat();
        nb::dict made;
        made["capacity_bytes"] = now.capacity_bytes;
        made["used_bytes"] = now.used_bytes;
        made["value_bytes"] = now.value_bytes;
        made["values"] = now.values;
        made["value_bytes_max"] = now.value_bytes_max;
        made["lanes"] = now.lanes;
        made["lanes_taken"] = now.lanes_taken;
        made["kept"] = now.kept;
        return made;
    }

    void close() {
        auto gone = std::exchange(store_, nullptr);
        const Released released;  // its thread is waited for
        gone.reset();
    }

  private:
    static DType dtype_named(std::string_view name) {
        const auto found = DType::parse(name);
        if (!found) raise("invalid_argument", "no dtype '" + std::string(name) + "'");
        return *found;
    }
    // Kept while it is used: another thread may close it.
    [[nodiscard]] std::shared_ptr<Store> open() const {
        if (store_ == nullptr) raise("closed", "this store is closed");
        return store_;
    }

    std::shared_ptr<Store> store_;
};

}  // namespace

void bind_store(nb::module_& module) {
    nb::class_<PyStore>(module, "Store")
        .def(nb::init<const std::string&, std::uint64_t, std::uint32_t, bool, const std::string&,
                      double>())
        .def("put", &PyStore::put, nb::arg("values"), nb::arg("timeout").none())
        .def("look", &PyStore::look)
        .def("read", &PyStore::read)
        .def("memory", &PyStore::memory)
        .def("clear", &PyStore::clear, nb::arg("values"), nb::arg("timeout").none())
        .def("clear_keys", &PyStore::clear_keys, nb::arg("keys"), nb::arg("timeout").none())
        .def("stat", &PyStore::stat)
        .def("close", &PyStore::close);
    module.def("remove_store", [](const std::string& name, bool force) {
        value_or_raise(Store::remove(name, force));
    });
}

}  // namespace rollring::python
