#include <algorithm>
#include <bit>
#include <cmath>

#include "ring/latency.hpp"

namespace bench {

// Below 64 ns each value has a bucket, above it each octave has 64.
std::size_t Delays::bucket(std::uint64_t ns) {
    const auto width = static_cast<unsigned>(std::bit_width(ns));
    if (width <= fine_bits) return ns;
    const unsigned shift = width - 1 - fine_bits;
    return ((std::size_t{shift} + 1) << fine_bits) + (ns >> shift & ((1U << fine_bits) - 1));
}

double Delays::lower(std::size_t bucket) {
    constexpr std::size_t fine = std::size_t{1} << fine_bits;
    if (bucket < fine) return static_cast<double>(bucket);
    const auto shift = static_cast<int>(bucket / fine) - 1;
    return std::ldexp(static_cast<double>(fine + bucket % fine), shift);
}

void Delays::add(std::int64_t ns) {
    counts_[bucket(static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0)))]++;
    count_++;
}

void Delays::add(const Delays& others) {
    for (std::size_t i = 0; i < counts_.size(); i++) counts_[i] += others.counts_[i];
    count_ += others.count_;
}

double Delays::at(double share) const {
    const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); i++) {
        seen += counts_[i];
        if (seen > wanted || (seen == count_ && seen != 0)) return (lower(i) + lower(i + 1)) / 2;
    }
    return 0;
}

Json Delays::quantiles() const {
    Json found = Json::array();
    for (int i = 0; i <= 60 && count_ != 0; i++) {
        const double share = 1 - std::pow(10.0, -i / 10.0);
        if ((1 - share) * static_cast<double>(count_) < 1) break;
        found.push_back({std::round(share * 1e7) / 1e7, at(share)});
    }
    return found;
}

Json Delays::histogram() const {
    constexpr std::size_t step = std::size_t{1} << (fine_bits - 2);
    Json found = Json::array();
    for (std::size_t i = 0; i < counts_.size(); i += step) {
        std::uint64_t records = 0;
        for (std::size_t k = i; k < std::min(i + step, counts_.size()); k++) records += counts_[k];
        if (records != 0) found.push_back({lower(i), lower(i + step), records});
    }
    return found;
}

void Percentiles::add(const Delays& delays) {
    constexpr std::array shares = {0.5, 0.99, 0.999};
    for (std::size_t i = 0; i < shares.size(); i++) rounds[i].push_back(delays.at(shares[i]));
    all.add(delays);
}

Json Percentiles::json() const {
    return {{"p50_ns", Spread::of(rounds[0]).json()},
            {"p99_ns", Spread::of(rounds[1]).json()},
            {"p999_ns", Spread::of(rounds[2]).json()},
            {"quantiles", all.quantiles()},
            {"histogram", all.histogram()}};
}

}  // namespace bench
