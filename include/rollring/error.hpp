#pragma once
// How rollring reports failure. Three kinds, three forms:
//  - an expected state on a hot path is a [[nodiscard]] enum of the call that meets it (Push,
//  Poll);
//  - the environment, at set-up, is a Result<T> with an Error that says what to do about it;
//  - a programmer's mistake aborts through ROLLRING_ASSERT, in release builds too.

#include <expected>
#include <string>
#include <string_view>

namespace rollring {

enum class Errc {
    invalid_argument,          // an option or a name is out of its range
    already_exists,            // a ring of that name exists
    not_found,                 // no ring of that name
    not_ready,                 // the ring was not finished by its creator within the deadline
    not_a_ring,                // the object is not ours, or is damaged
    abi_mismatch,              // made by an incompatible version of rollring
    permission_denied,         // other owner, wider mode, or the system refused
    not_enough_shared_memory,  // /dev/shm (or the cgroup behind it) cannot hold what was asked for
    busy,                      // someone alive holds what was asked for (consumer seat, ring)
    no_free_lane,              // all lanes are taken by live or not yet drained producers
    record_too_large,          // the record can never fit into a lane
    journal_full,              // more records in one acknowledgement than the redo journal holds
    bad_record,                // a record breaks the schema or the format
    timed_out,                 // the deadline of a call of the weight channel passed
    peer_gone,                 // the other side closed its end or died
    expelled,                  // the publisher went on without this subscriber
    stale_version,             // a version that is not above the last one
    layout_mismatch,           // tensors here and there differ in name, dtype or shape
    bad_manifest,              // what a publisher sent breaks the format
    rejected,                  // a subscriber could not take the version
    aborted,                   // the version was given up
    checksum_mismatch,         // bytes of a tensor did not arrive as they were sent
    unsupported,               // a tensor or a way of sharing that rollring cannot handle
    no_gpu,                    // no GPU, no libcuda, or a build without CUDA
    no_peer_access,            // this GPU cannot read that one's memory
    device_error,              // a call of the CUDA driver failed
    out_of_device_memory,      // the GPU has too little memory free
    host_memory,               // the system has no pinned host memory to give
    already_released,          // the memory of this tag is released
    not_released,              // the memory of this tag is not released
    forked,                    // the object is its parent process's: a forked child has none
    not_leased,                // acknowledged, given back or released before, or its stash is gone
    system,                    // any other failed system call
};

// The name of a code as it stands above, for logs and --json.
std::string_view name(Errc code);

struct Error {
    Errc code;
    int system_errno = 0;  // 0 where no system call failed
    std::string message;   // what was tried, on what, why it failed, and what to do

    // "not_enough_shared_memory: /dev/shm has 64 MiB free, ..."
    [[nodiscard]] std::string to_string() const;
};

// A std::expected that may not be dropped unread: libstdc++ does not mark its own.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
  public:
    using std::expected<T, Error>::expected;
};

[[noreturn]] void assertion_failed(const char* file, int line, const char* what,
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
