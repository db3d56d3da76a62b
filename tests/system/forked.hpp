#pragma once
// Calls on inherited objects, made in a forked child: the table of tests/system/forked.cpp.

#include <unistd.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rollring/error.hpp"
#include "support/in_child.hpp"

namespace rollring::test {

template <class T>
bool refused_as_forked(const Result<T>& result) {
    return !result && result.error().code == Errc::forked && !result.error().message.empty();
}

template <class T>
T opened(Result<T> result, const char* what) {
    if (!result) fmt::print(stderr, "{}: {}\n", what, result.error().to_string());
    require(result.has_value(), "{}", what);
    return std::move(*result);
}

// One method: true if it was refused, or did nothing.
struct Call {
    std::string method;
    std::function<bool()> holds;
};
using Calls = std::vector<Call>;

inline std::set<std::string> called;  // by any process

// All calls in one forked child, in their order. A hang ends it by a signal.
inline void try_in_child(const Calls& calls) {
    for (const Call& call : calls) called.insert("rollring::" + call.method);
    const int failures = in_child([&] {
        alarm(60);
        int failed = 0;
        for (const Call& call : calls) {
            if (call.holds()) continue;
            fmt::print(stderr, "in a forked child: {} was not refused\n", call.method);
            failed++;
        }
        return failed;
    });
    require(failures == 0, "every call in a forked child is refused, or does nothing");
}

// A call that only tells the object's state is allowed, and changes nothing.
template <class Tell>
std::function<bool()> tells(Tell tell) {
    return [tell] {
        static_cast<void>(tell());
        return true;
    };
}

template <class Act>
std::function<bool()> inert(Act act) {
    return [act] {
        act();
        return true;
    };
}

// The weight channel, whose engine is another process (forked_weights.cpp).
void try_weights();

}  // namespace rollring::test
