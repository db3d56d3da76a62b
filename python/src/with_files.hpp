#pragma once
// Calls of objects that read or write files.

#include <utility>

#include "owned.hpp"
#include "released.hpp"

namespace rollring::python {

// The answer of use(object), without the GIL.
template <class T, class Use>
auto with_files(Owned<T>& owned, const Use& use) {
    owned.check();
    decltype(use(*owned.object)) answer = refused(Errc::closed, "");
    Result<void> done;
    {
        const Released released;
        done = owned.slice(
            [&](T& object, Deadline) {
                answer = use(object);
                return Result<void>();
            },
            Deadline::now());
    }
    if (!done) owned.check();  // closed meanwhile
    return value_or_raise(std::move(answer));
}

}  // namespace rollring::python
