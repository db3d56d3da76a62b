#include "reference.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "checksum.hpp"

namespace rollring::test {
namespace {

using device::Cast;
using device::CopyJob;

std::uint64_t below(Random& random, std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random);
}

// Offset of an element from element 0, in bytes.
std::int64_t place(const CopyJob& job, std::uint64_t element) {
    if (job.shape.empty()) return static_cast<std::int64_t>(element * job.element_bytes);
    std::int64_t offset = 0;
    for (std::size_t d = job.shape.size(); d-- > 0;) {
        const auto extent = static_cast<std::uint64_t>(job.shape[d]);
        offset += static_cast<std::int64_t>(element % extent) * job.strides[d];
        element /= extent;
    }
    return offset * static_cast<std::int64_t>(job.element_bytes);
}

// Few bytes often, many seldom, and sizes around those of vectors, warps and tiles.
std::uint64_t random_size(std::uint64_t most, Random& random) {
    constexpr std::array<std::uint64_t, 8> marks = {16, 32, 512, 4096, 8192, 16384, 32768, 65536};
    switch (below(random, 4)) {
        case 0:
            return below(random, std::min<std::uint64_t>(most, 64) + 1);
        case 1:
            return std::min(most, marks[below(random, marks.size())] + below(random, 35) - 17 + 1);
        case 2:
            return below(random, std::min<std::uint64_t>(most, 5000) + 1);
        default:
            return below(random, most + 1);
    }
}

// Extents and strides over a permuted, gappy storage; the storage's size in elements.
std::uint64_t random_strides(CopyJob& job, std::uint64_t most, bool overlapping, Random& random) {
    const std::size_t dims = 1 + below(random, CopyJob::dims_max);
    job.shape.assign(dims, 1);
    job.strides.assign(dims, 0);
    std::uint64_t room = std::max<std::uint64_t>(most, 64);
    for (std::size_t d = 0; d < dims && room >= 2; d++) {
        const std::uint64_t top = d + 1 == dims ? room : std::min<std::uint64_t>(room, 40);
        job.shape[d] = static_cast<std::int64_t>(1 + below(random, top));
        room /= static_cast<std::uint64_t>(job.shape[d]);
    }
    std::ranges::shuffle(job.shape, random);
    std::vector<std::size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    if (below(random, 2) == 0) std::ranges::sort(order, std::greater{});  // contiguous inside
    std::uint64_t stride = below(random, 3) == 0 ? 1 + below(random, 3) : 1;
    for (const std::size_t d : order) {
        if (overlapping && below(random, 8) == 0) continue;  // stride 0
        job.strides[d] = static_cast<std::int64_t>(stride);
        stride *= static_cast<std::uint64_t>(job.shape[d]);
        if (below(random, 3) == 0) stride += below(random, 9);
    }
    return stride;
}

}  // namespace

Bytes random_bytes(std::size_t count, Random& random) {
    Bytes bytes(count);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    for (; i < count; i++) bytes[i] = static_cast<std::byte>(random());
    return bytes;
}

Bytes block_bytes(std::size_t count, std::uint64_t seed) {
    Random random(seed);
    return random_bytes(count, random);
}

void JobList::add(CopyJob job, std::uint64_t bytes, std::uint64_t skew) {
    const std::uint64_t at = (arena_bytes + 15) / 16 * 16 + skew;
    job.tensor = std::bit_cast<std::byte*>(at);
    job.slot_offset = slot_bytes;
    arena_bytes = at + bytes;
    slot_bytes += (job.packed_bytes() + device::piece_alignment - 1) / device::piece_alignment *
                  device::piece_alignment;
    jobs.push_back(std::move(job));
}

void JobList::finish() {
    sums_offset = slot_bytes;
    slot_bytes += jobs.size() * sizeof(std::uint64_t) + 64;  // and some bytes to stay as they are
}

std::vector<CopyJob> JobList::placed(std::byte* arena) const {
    std::vector<CopyJob> copy = jobs;
    for (CopyJob& job : copy) job.tensor = arena + reinterpret_cast<std::uint64_t>(job.tensor);
    return copy;
}

void JobList::pack_job(std::size_t index, const std::byte* tensor, Bytes& slot) const {
    const CopyJob& job = jobs[index];
    std::byte* to = slot.data() + job.slot_offset;
    for (std::uint64_t i = 0; i < job.elements; i++) {
        const std::byte* from = tensor + place(job, job.first_element + i);
        if (job.cast == Cast::none) {
            std::memcpy(to + i * job.element_bytes, from, job.element_bytes);
            continue;
        }
        std::uint32_t value = 0;
        std::memcpy(&value, from, sizeof value);
        const std::uint16_t half =
            job.cast == Cast::f32_to_bf16 ? bf16_bits(value) : f16_bits(value);
        std::memcpy(to + i * sizeof half, &half, sizeof half);
    }
}

void JobList::sum_job(std::size_t index, Bytes& slot) const {
    const CopyJob& job = jobs[index];
    const std::uint64_t bytes = job.packed_bytes();
    std::uint64_t sum = 0;
    for (std::uint64_t at = 0; at < bytes; at += 4) {
        std::uint32_t word = 0;
        std::memcpy(&word, slot.data() + job.slot_offset + at,
                    std::min<std::uint64_t>(4, bytes - at));
        sum += device::mix_word(word, at / 4);
    }
    std::memcpy(slot.data() + sums_offset + index * sizeof sum, &sum, sizeof sum);
}

void JobList::pack(const Bytes& arena, Bytes& slot) const {
    for (std::size_t i = 0; i < jobs.size(); i++) {
        pack_job(i, arena.data() + reinterpret_cast<std::uint64_t>(jobs[i].tensor), slot);
    }
}

void JobList::unpack(const Bytes& slot, Bytes& arena) const {
    for (const CopyJob& job : jobs) {
        std::byte* tensor = arena.data() + reinterpret_cast<std::uint64_t>(job.tensor);
        for (std::uint64_t i = 0; i < job.elements; i++) {
            std::memcpy(tensor + place(job, job.first_element + i),
                        slot.data() + job.slot_offset + i * job.element_bytes, job.element_bytes);
        }
    }
}

JobList random_jobs(const Wanted& wanted, Random& random) {
    JobList list;
    for (std::size_t i = 0; i < wanted.jobs; i++) {
        CopyJob job;
        job.element_bytes = 1u << below(random, 4);
        if (below(random, 100) < wanted.cast_percent) {
            job.element_bytes = 4;
            job.cast = below(random, 2) == 0 ? Cast::f32_to_bf16 : Cast::f32_to_f16;
        }
        const std::uint64_t most = random_size(wanted.bytes_max, random) / job.element_bytes;
        std::uint64_t elements = most;
        std::uint64_t storage = most;
        if (below(random, 100) < wanted.strided_percent) {
            storage = random_strides(job, most, wanted.overlapping, random);
            elements = 1;
            for (const std::int64_t extent : job.shape) {
                elements *= static_cast<std::uint64_t>(extent);
            }
        }
        if (below(random, 2) == 0) job.first_element = below(random, elements + 1);
        job.elements = elements - job.first_element;
        if (below(random, 4) == 0) job.elements = below(random, job.elements + 1);
        // Mostly as allocators do it; else as a view of a packed buffer may be, or anyhow.
        std::uint64_t skew = 0;
        const std::uint64_t how = below(random, 4);
        if (how == 0) skew = below(random, 16) / job.element_bytes * job.element_bytes;
        if (how == 1) skew = below(random, 16);
        const std::uint64_t bytes = storage * job.element_bytes;
        list.add(std::move(job), bytes, skew);
    }
    list.finish();
    return list;
}

std::uint16_t bf16_bits(std::uint32_t f32_bits) {
    if (std::isnan(std::bit_cast<float>(f32_bits))) return 0x7fff;
    const std::uint32_t lower = f32_bits & 0xffff;
    std::uint32_t upper = f32_bits >> 16;
    if (lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1)) upper++;
    return static_cast<std::uint16_t>(upper);
}

std::uint16_t f16_bits(std::uint32_t f32_bits) {
    const auto value = std::bit_cast<float>(f32_bits);
    if (std::isnan(value)) return 0x7fff;
    const std::uint32_t sign = f32_bits >> 31 != 0 ? 0x8000 : 0;
    const double size = std::fabs(static_cast<double>(value));
    if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
    // Multiples of the distance between neighbours of this size; nearbyint rounds to even.
    const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    const double steps = std::nearbyint(std::ldexp(size, 10 - exponent));
    // The next exponent follows the last mantissa, so that a carry needs no care.
    const auto bits =
        static_cast<std::uint32_t>(steps) + (static_cast<std::uint32_t>(exponent + 14) << 10);
    return static_cast<std::uint16_t>(sign | bits);
}

std::int64_t first_difference(std::span<const std::byte> left, std::span<const std::byte> right) {
    const auto [a, b] = std::ranges::mismatch(left, right);
    if (a == left.end() && b == right.end()) return -1;
    return a - left.begin();
}

}  // namespace rollring::test
