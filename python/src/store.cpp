#include "bindings.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "memory.hpp"
#include "released.hpp"
#include "rollring/extras/store.hpp"
#include "turn.hpp"

namespace rollring::python {
namespace {

// Calls step(deadline) in slices while it answers `waiting`.
template <class Step>
Result<void> waited(std::optional<double> timeout, Errc waiting, Step step) {
    return in_slices(deadline_of(timeout), step, [waiting](const Result<void>& done) {
        return !done && done.error().code == waiting;
    });
}

DType dtype_named(std::string_view name) {
    const auto found = DType::parse(name);
    if (!found) raise("invalid_argument", "unknown dtype '" + std::string(name) + "'");
    return *found;
}

// Adjacent values in memory, each with its key, as (keys, column, address, dtype, shape of one,
// tag, address of offsets). The offsets, 64-bit and one more than values, are the rows at which the
// values begin, and the last one ends.
void add_values(nb::handle given, std::vector<StoreValue>& values) {
    const auto block = nb::cast<nb::tuple>(given);
    const auto keys = nb::cast<nb::list>(block[0]);
    StoreValue value{.column = nb::cast<std::string_view>(block[1])};
    const auto* data = reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(block[2]));
    value.form.dtype = dtype_named(nb::cast<std::string_view>(block[3]));
    const auto shape = nb::cast<nb::tuple>(block[4]);
    value.form.dims = static_cast<std::uint8_t>(shape.size());
    for (std::size_t i = 0; i < std::min<std::size_t>(shape.size(), 4); i++) {
        value.form.shape[i] = nb::cast<std::uint32_t>(shape[i]);
    }
    value.form.tag = nb::cast<std::uint16_t>(block[5]);
    const auto* row = reinterpret_cast<const std::int64_t*>(nb::cast<std::uintptr_t>(block[6]));
    for (const nb::handle key : keys) {
        value.key = nb::cast<std::string_view>(key);
        value.data = data;
        if (row != nullptr) {
            value.form.shape[0] = static_cast<std::uint32_t>(row[1] - row[0]);
            row++;
        }
        values.push_back(value);
        data += value.form.bytes();
    }
}

// Found values, to be read.
class PyFound {
  public:
    PyFound(std::shared_ptr<Store> store, std::vector<StoredValue> values)
        : store_(std::move(store)), values_(std::move(values)) {}

    // (dtype, shape, tag, bytes) of each value.
    [[nodiscard]] nb::list forms() const {
        nb::list all;
        for (const StoredValue& value : values_) {
            const ValueForm& form = value.form;
            all.append(
                nb::make_tuple(name_of(form.dtype), shape_of(form, 0), form.tag, form.bytes()));
        }
        return all;
    }
    // The same for all of them together, without the first dimension; None if they differ in
    // anything else. The bytes are their sum.
    [[nodiscard]] nb::object joined() const {
        if (values_.empty()) return nb::none();
        ValueForm all = values_.front().form;
        std::uint64_t bytes = 0;
        for (const StoredValue& value : values_) {
            bytes += value.form.bytes();
            all.shape[0] = value.form.shape[0];
            if (value.form != all) return nb::none();
        }
        return nb::make_tuple(name_of(all.dtype), shape_of(all, 1), all.tag, bytes);
    }
    // Writes the values one after the other, and their offsets, 64-bit and one more than values:
    // the rows at which the values begin, and the last one ends.
    void read_joined(std::uintptr_t to, std::uintptr_t offsets) const {
        auto* row = reinterpret_cast<std::int64_t*>(offsets);
        auto* place = reinterpret_cast<std::byte*>(to);
        std::vector<std::byte*> places;
        places.reserve(values_.size());
        *row = 0;
        for (const StoredValue& value : values_) {
            places.push_back(place);
            place += value.form.bytes();
            row[1] = row[0] + value.form.shape[0];
            row++;
        }
        copy(values_, places);
    }
    // Copies each value to its address; values without an address are skipped.
    void read(const std::vector<std::uintptr_t>& to) const {
        if (to.size() != values_.size()) raise("invalid_argument", "each value has an address");
        std::vector<StoredValue> some;
        std::vector<std::byte*> places;
        for (std::size_t i = 0; i < to.size(); i++) {
            if (to[i] == 0) continue;
            some.push_back(values_[i]);
            places.push_back(reinterpret_cast<std::byte*>(to[i]));
        }
        copy(some, places);
    }
    [[nodiscard]] Memory memory(std::size_t index) const {
        const StoredValue& value = values_.at(index);
        Memory made(value.form.bytes());
        std::byte* const place = made.data();
        copy({&value, 1}, {&place, 1});
        return made;
    }

  private:
    static nb::object name_of(DType dtype) { return nb::cast(dtype.to_string()); }
    static nb::tuple shape_of(const ValueForm& form, std::uint8_t from) {
        nb::list shape;
        for (std::uint8_t i = from; i < form.dims; i++) shape.append(form.shape[i]);
        return nb::tuple(shape);
    }

    void copy(std::span<const StoredValue> values, std::span<std::byte* const> to) const {
        value_or_raise([&] {
            const Released released;
            return store_->read(values, to);
        }());
    }

    std::shared_ptr<Store> store_;
    std::vector<StoredValue> values_;
};

class PyStore {
  public:
    // NOLINTNEXTLINE(readability-function-size): the arguments of Python
    PyStore(const std::string& name, std::uint64_t capacity, std::uint32_t lanes, bool make,
            const std::string& process, double timeout) {
        const StoreOptions options{.name = process,
                                   .make = make,
                                   .capacity_bytes = capacity,
                                   .lanes = lanes,
                                   .attach_timeout = std::chrono::milliseconds(100)};
        store_ =
            std::make_shared<Store>(opened(deadline_of(timeout), {Errc::not_found, Errc::not_ready},
                                           [&](auto) { return Store::open(name, options); }));
    }

    std::vector<std::uint64_t> put(nb::list given, std::optional<double> timeout) {
        const auto store = open();
        std::vector<StoreValue> values;
        values.reserve(given.size());
        for (const nb::handle each : given) add_values(each, values);
        std::vector<Location> at(values.size());
        value_or_raise(waited(timeout, Errc::store_full,
                              [&](Deadline deadline) { return store->put(values, at, deadline); }));
        std::vector<std::uint64_t> numbers;
        numbers.reserve(at.size());
        for (const Location& each : at) numbers.push_back(each.number);
        return numbers;
    }

    [[nodiscard]] PyFound find(const std::vector<std::uint64_t>& numbers) const {
        const auto store = open();
        const std::vector<Location> at = locations(numbers);
        std::vector<StoredValue> found(at.size());
        value_or_raise([&] {
            const Released released;
            return store->find(at, found);
        }());
        return {store, std::move(found)};
    }

    void clear(const std::vector<std::uint64_t>& numbers, std::optional<double> timeout) {
        const auto store = open();
        const std::vector<Location> at = locations(numbers);
        value_or_raise(waited(timeout, Errc::timed_out,
                              [&](Deadline deadline) { return store->clear(at, deadline); }));
    }
    void clear_keys(const std::vector<std::string>& keys, std::optional<double> timeout) {
        const auto store = open();
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        value_or_raise(waited(timeout, Errc::timed_out, [&](Deadline deadline) {
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
        const Released released;  // waits for its thread
        gone.reset();
    }

  private:
    static std::vector<Location> locations(const std::vector<std::uint64_t>& numbers) {
        std::vector<Location> at;
        at.reserve(numbers.size());
        for (const std::uint64_t number : numbers) at.push_back({number});
        return at;
    }
    // Kept during its use: another thread may close it.
    [[nodiscard]] std::shared_ptr<Store> open() const {
        if (store_ == nullptr) raise("closed", "this store is closed");
        return store_;
    }

    std::shared_ptr<Store> store_;
};

}  // namespace

void bind_store(nb::module_& module) {
    nb::class_<PyFound>(module, "Found")
        .def("forms", &PyFound::forms)
        .def("joined", &PyFound::joined)
        .def("read_joined", &PyFound::read_joined)
        .def("read", &PyFound::read)
        .def("memory", &PyFound::memory);
    nb::class_<PyStore>(module, "Store")
        .def(nb::init<const std::string&, std::uint64_t, std::uint32_t, bool, const std::string&,
                      double>())
        .def("put", &PyStore::put, nb::arg("values"), nb::arg("timeout").none())
        .def("find", &PyStore::find)
        .def("clear", &PyStore::clear, nb::arg("values"), nb::arg("timeout").none())
        .def("clear_keys", &PyStore::clear_keys, nb::arg("keys"), nb::arg("timeout").none())
        .def("stat", &PyStore::stat)
        .def("close", &PyStore::close);
    module.def("remove_store", [](const std::string& name, bool force) {
        value_or_raise(Store::remove(name, force));
    });
}

}  // namespace rollring::python
