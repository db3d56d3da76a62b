#pragma once
// How rollring reports failure. Three kinds, three forms:
//  - an expected state on a hot path is a [[nodiscard]] enum of the call that meets it (Push,
//  Poll);
//  - a failure of the environment, at set-up, is a Result<T> whose Error names the remedy;
//  - a programmer's mistake aborts through ROLLRING_ASSERT, in release builds too.

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

#include "rollring/version.hpp"

namespace rollring {

// The numbers are part of the ABI, travel between processes, and never change: a new code takes the
// next number; the number of a removed code is not reused.
enum class Errc : std::uint32_t {
    invalid_argument = 1,          // an option or a name is out of its range
    already_exists = 2,            // a ring of that name exists
    not_found = 3,                 // no ring of that name
    not_ready = 4,                 // the ring was not finished by its creator within the deadline
    not_a_ring = 5,                // the object is not ours, or is damaged
    abi_mismatch = 6,              // made by an incompatible version of rollring
    permission_denied = 7,         // other owner, wider mode, or the system refused
    not_enough_shared_memory = 8,  // /dev/shm, or the cgroup behind it, has too little
    busy = 9,                      // a live process holds the resource (consumer seat, ring)
    no_free_lane = 10,             // all lanes are taken by live or not yet drained producers
    journal_full = 11,          // more records in one acknowledgement than the redo journal holds
    bad_record = 12,            // a record breaks the schema or the format
    timed_out = 13,             // the deadline of a call of the weight channel passed
    peer_gone = 14,             // the other side closed its end or died
    expelled = 15,              // the publisher expelled this subscriber and continued
    stale_version = 16,         // a version that is not above the last one
    layout_mismatch = 17,       // tensors here and there differ in name, dtype or shape
    bad_manifest = 18,          // a publisher's message breaks the format
    rejected = 19,              // a subscriber could not take the version
    aborted = 20,               // the version was given up
    checksum_mismatch = 21,     // a tensor's bytes were corrupted in transfer
    unsupported = 22,           // a tensor or a way of sharing that rollring cannot handle
    no_gpu = 23,                // no GPU, no libcuda, or a build without CUDA
    no_peer_access = 24,        // this GPU cannot read that one's memory
    device_error = 25,          // a call of the CUDA driver failed
    out_of_device_memory = 26,  // the GPU has too little memory free
    host_memory = 27,           // the system has no pinned host memory to give
    already_released = 28,      // the memory of this tag is released
    not_released = 29,          // the memory of this tag is not released
    forked = 30,                // the object is the parent process's: open one in the child
    not_leased = 31,            // acknowledged, given back or released before, or its stash is gone
    system = 32,                // any other failed system call
    closed = 33,                // the object was closed, or its ring was removed
    too_large = 34,             // it can never fit
    stale_ticket = 35,          // the ticket's batch is no longer leased: stop reading it
    store_full = 36,            // a store has no room, or the folder of parked rollouts
    not_stored = 37,            // no value of a store lies there: it was cleared, or replaced
    ledger_failed = 38,         // the disk of a ring's ledger failed: nothing more is durable there
    rollback_asked = 39,        // an engine is asked to leave the version that it serves
};

// The name of a code as written above, for logs and --json; empty for a number without a code.
ROLLRING_API std::string_view name(Errc code);

struct ROLLRING_API Error {
    Errc code;
    int system_errno = 0;  // 0 where no system call failed
    std::string message;   // the operation, its object, the cause and the remedy

    // "not_enough_shared_memory: /dev/shm has 64 MiB free, ..."
    [[nodiscard]] std::string to_string() const;
};

// A std::expected that may not be dropped unread: libstdc++ does not mark its own.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
  public:
    using std::expected<T, Error>::expected;
};

// The return values of a function that fails: failed() because of a system call, refused() because
// of a bad argument or a bad state.
inline std::unexpected<Error> failed(Errc code, int system_errno, std::string message) {
    return std::unexpected(Error{code, system_errno, std::move(message)});
}
inline std::unexpected<Error> refused(Errc code, std::string message) {
    return failed(code, 0, std::move(message));
}

[[noreturn]] ROLLRING_API void assertion_failed(const char* file, int line, const char* what,
                                                std::string_view values);

}  // namespace rollring

// Stays on in release builds. The message is a string_view-convertible expression with the values.
#define ROLLRING_ASSERT(condition, values)                                          \
    do {                                                                            \
        if (!(condition)) [[unlikely]]                                              \
            ::rollring::assertion_failed(__FILE__, __LINE__, #condition, (values)); \
    } while (false)

#ifndef __cpp_lib_expected
#error "rollring needs std::expected: g++ 12, -std=c++23; nvcc: -std=c++20 -Xcompiler -std=c++23"
#endif
