#pragma once
// Metrics for Prometheus: families of samples with labels, in its text format 0.0.4.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/formats/json_tree.hpp"

namespace rollring::cli {

enum class MetricType : std::uint8_t { gauge, counter };

using MetricLabels = std::vector<std::pair<std::string, std::string>>;
using MetricValue = std::variant<std::uint64_t, double>;

// Families in the order of their declaration. A family without a sample is written as well, so that
// readers see which families exist.
class MetricSet {
  public:
    // Names are [a-z][a-z0-9_]*, those of counters end in _total.
    void declare(const std::string& name, MetricType type, const std::string& help);
    // Adds to a declared family. A second sample with the same labels is left out, because readers
    // would refuse the page.
    void add(const std::string& name, const MetricLabels& labels, MetricValue value);

    // Foreign text is escaped; bytes that are not UTF-8 become U+FFFD.
    [[nodiscard]] std::string text() const;
    [[nodiscard]] Json json() const;

    static constexpr std::string_view content_type = "text/plain; version=0.0.4; charset=utf-8";

  private:
    struct Sample {
        MetricLabels labels;
        MetricValue value;
    };
    struct Family {
        std::string name;
        MetricType type;
        std::string help;
        std::vector<Sample> samples = {};
        std::set<MetricLabels> seen = {};
    };

    std::vector<Family> families_;
    std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace rollring::cli
