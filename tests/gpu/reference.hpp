#pragma once
// Random lists of jobs and what packing and unpacking them must give, computed one element at a
// time. Both sides are whole images: bytes that no job may touch are compared too.

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "backend.hpp"

namespace rollring::test {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

Bytes random_bytes(std::size_t count, Random& random);
// The bytes that tests put into a whole block: the same in every process.
Bytes block_bytes(std::size_t count, std::uint64_t seed);

struct Wanted {
    std::size_t jobs = 100;
    std::uint64_t bytes_max = 100'000;  // of a job
    unsigned strided_percent = 0;
    unsigned cast_percent = 0;
    bool overlapping = false;  // strided jobs may read an element twice (stride 0): pack only
};

// `arena` and `slot` are offsets at first: place() turns them into addresses.
struct JobList {
    std::vector<device::CopyJob> jobs;  // CopyJob::tensor counts from the start of the arena
    std::uint64_t arena_bytes = 0;
    std::uint64_t slot_bytes = 0;   // with the checksums
    std::uint64_t sums_offset = 0;  // in the slot

    // Adds a job on `bytes` of the arena, `skew` bytes past a multiple of 16.
    void add(device::CopyJob job, std::uint64_t bytes, std::uint64_t skew);
    void finish();  // makes room for the checksums
    [[nodiscard]] std::vector<device::CopyJob> placed(std::byte* arena) const;

    void pack(const Bytes& arena, Bytes& slot) const;
    void pack_job(std::size_t job, const std::byte* tensor, Bytes& slot) const;
    void sum_job(std::size_t job, Bytes& slot) const;
    void unpack(const Bytes& slot, Bytes& arena) const;
};
JobList random_jobs(const Wanted& wanted, Random& random);

// One f32 in bits, rounded to nearest even; any NaN is 0x7fff.
std::uint16_t bf16_bits(std::uint32_t f32_bits);
std::uint16_t f16_bits(std::uint32_t f32_bits);

// Index of the first byte that differs; -1 if none does.
std::int64_t first_difference(std::span<const std::byte> left, std::span<const std::byte> right);

}  // namespace rollring::test
