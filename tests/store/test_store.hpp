#pragma once
// A store for tests, gone at the end, and its calls in a line each.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "rollring/extras/store.hpp"
#include "support/process.hpp"

namespace rollring::test {

inline const StoreOptions small{.capacity_bytes = 1 << 20, .lanes = 8};

// A name of its own, gone at the end.
struct TestStore {
    explicit TestStore(const StoreOptions& options = small)
        : name("store" + std::to_string(getpid()) + "_" + std::to_string(count++)), given(options) {
        static_cast<void>(Store::remove(name, true));
    }
    TestStore(const TestStore&) = delete;
    TestStore& operator=(const TestStore&) = delete;
    ~TestStore() { static_cast<void>(Store::remove(name, true)); }
    [[nodiscard]] Store open() const {
        auto opened = Store::open(name, given);
        REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
        return std::move(*opened);
    }

    static inline int count = 0;
    std::string name;
    StoreOptions given;
};

inline std::vector<std::uint32_t> numbers(std::uint32_t first, std::size_t count) {
    std::vector<std::uint32_t> made(count);
    for (std::size_t i = 0; i < count; i++) made[i] = first + static_cast<std::uint32_t>(i);
    return made;
}

inline StoreValue value_of(const std::vector<std::uint32_t>& from, std::string_view key = {}) {
    return {.key = key,
            .form = {.dtype = dtype_u32,
                     .dims = 1,
                     .shape = {static_cast<std::uint32_t>(from.size())},
                     .tag = 7},
            .data = from.data()};
}

// A value owns nothing: a temporary would be gone before it is put.
inline StoreValue value_of(std::vector<std::uint32_t>&& temporary,
                           std::string_view key = {}) = delete;

inline Result<Location> put(Store& store, const std::vector<std::uint32_t>& from,
                            std::string_view key = {}, Deadline deadline = patience()) {
    const StoreValue value = value_of(from, key);
    Location at;
    if (auto done = store.put({&value, 1}, {&at, 1}, deadline); !done) {
        return std::unexpected(done.error());
    }
    return at;
}

inline Result<ValueForm> look(const Store& store, Location at) {
    StoredValue found;
    if (auto there = store.find({&at, 1}, {&found, 1}); !there) {
        return std::unexpected(there.error());
    }
    return found.form;
}

inline bool reads(const Store& store, Location at, const std::vector<std::uint32_t>& wanted) {
    const auto form = look(store, at);
    if (!form || *form != value_of(wanted).form) return false;
    std::vector<std::uint32_t> copy(wanted.size());
    return store.read(at, std::as_writable_bytes(std::span(copy))) && copy == wanted;
}

template <class T>
bool failed_with(const Result<T>& result, Errc code) {
    return !result && result.error().code == code && !result.error().message.empty();
}

inline bool clear(Store& store, Location at) {
    return store.clear({&at, 1}, patience()).has_value();
}

// Waits for the next step of another process, or of the keeper's thread.
template <class Condition>
bool comes(Condition condition) {
    for (const Deadline end = patience(); !end.passed();) {
        if (condition()) return true;
        std::this_thread::yield();
    }
    return condition();
}

}  // namespace rollring::test
