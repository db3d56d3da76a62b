#pragma once
// The library's operations that run while the system refuses one of its calls.

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "refusals.hpp"
#include "rollring/error.hpp"
#include "support/load.hpp"

namespace rollring::test {

// One operation on a world of its own, which the constructor has made. Failure is thrown for a
// broken promise.
class Case {
  public:
    Case() = default;
    Case(const Case&) = delete;
    Case& operator=(const Case&) = delete;
    virtual ~Case() = default;
    // The operation, under refusal: done, or an error with a name.
    virtual Result<void> act() = 0;
    // Afterwards, all calls pass: whatever became of it, nothing is lost and nothing half done.
    virtual void check(const Result<void>& acted, Call refused) = 0;
    // The same operation again, where it failed: it succeeds.
    virtual void again() = 0;
};

struct NamedCase {
    std::string name;
    std::function<std::unique_ptr<Case>()> make;
};
std::vector<NamedCase> ring_cases();
std::vector<NamedCase> stash_cases();

RingOptions refused_ring();

template <class T>
Result<void> outcome(const Result<T>& result) {
    if (result) return {};
    return std::unexpected(result.error());
}
template <class T>
void require_done(const Result<T>& result, const char* what) {
    require(result.has_value(), "{}: {}", what, result ? "" : result.error().to_string());
}

}  // namespace rollring::test
