#pragma once
// The answer to a question: figures with their spread, and a report of them. A report is one JSON
// object; the text for people is made from it, so that both say the same.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

using Json = nlohmann::ordered_json;

struct Spread {
    double median = 0;
    double low = 0;
    double high = 0;

    static Spread of(std::vector<double> values);
    [[nodiscard]] Json json() const { return {{"median", median}, {"min", low}, {"max", high}}; }
};

// The measurements of several rounds, by name, in the order in which names appear first.
class Figures {
  public:
    void add(std::string_view name, double value);
    [[nodiscard]] const std::vector<double>& of(std::string_view name) const;  // empty: none
    [[nodiscard]] Spread spread(std::string_view name) const { return Spread::of(of(name)); }
    [[nodiscard]] bool empty() const { return figures_.empty(); }
    [[nodiscard]] const auto& all() const { return figures_; }
    void append_to(Json& row) const;  // each with its spread

  private:
    std::vector<std::pair<std::string, std::vector<double>>> figures_;
};

// On stdout, as JSON or as text: a line of the single values, and a table for each list of rows.
void print_report(const Json& report, bool as_json);

}  // namespace bench
