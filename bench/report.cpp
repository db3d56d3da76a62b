#include "report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/terminal/quantity.hpp"
#include "cli/terminal/table.hpp"

namespace bench {
namespace {

namespace cli = rollring::cli;

using Cells = std::vector<std::pair<std::string, std::string>>;  // title and text

std::string number(double value) {
    return std::abs(value) >= 1e4 ? cli::short_text(value) : fmt::format("{:.4g}", value);
}

std::string cell(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value.is_number_unsigned()) return cli::count_text(value.get<std::uint64_t>());
    if (value.is_number()) return number(value.get<double>());
    const auto part = [&](const char* name) { return number(value[name].get<double>()); };
    return fmt::format("{} [{}-{}]", part("median"), part("min"), part("max"));
}

// Every single figure of the object; a deeper one has a longer name. Lists are tables of their own.
void flatten(const Json& object, const std::string& above, Cells& cells) {
    for (const auto& [name, value] : object.items()) {
        if (value.is_array() || value.is_null()) continue;
        if (value.is_object() && !value.contains("median")) {
            flatten(value, above + name + " ", cells);
        } else {
            cells.emplace_back(above + name, cell(value));
        }
    }
}

std::string table(const Json& rows) {
    std::vector<Cells> lines;
    std::vector<std::string> titles;
    for (const Json& row : rows) {
        flatten(row, "", lines.emplace_back());
        for (const auto& [title, _] : lines.back()) {
            if (std::ranges::find(titles, title) == titles.end()) titles.push_back(title);
        }
    }
    std::vector<cli::Table::Column> columns;
    columns.reserve(titles.size());
    for (const std::string& title : titles) columns.push_back({title});
    if (!columns.empty()) columns[0].align = cli::Table::Align::left;
    cli::Table made(columns);
    for (const Cells& line : lines) {
        std::vector<std::string> texts;
        for (const std::string& title : titles) {
            const auto at = std::ranges::find(line, title, &Cells::value_type::first);
            texts.push_back(at == line.end() ? "" : at->second);
        }
        made.add(std::move(texts));
    }
    return made.text(cli::any_width);
}

void append_tables(const Json& object, const std::string& above, std::string& text) {
    for (const auto& [name, value] : object.items()) {
        if (value.is_array() && !value.empty() && value[0].is_object()) {
            text += fmt::format("\n{}{}\n{}", above, name, table(value));
        }
        if (value.is_object()) append_tables(value, above + name + " ", text);
    }
}

}  // namespace

Spread Spread::of(std::vector<double> values) {
    if (values.empty()) return {};
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    const double middle =
        values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
    return {middle, values.front(), values.back()};
}

void Figures::add(std::string_view name, double value) {
    for (auto& [known, values] : figures_) {
        if (known == name) return values.push_back(value);
    }
    figures_.emplace_back(name, std::vector{value});
}

const std::vector<double>& Figures::of(std::string_view name) const {
    static const std::vector<double> none;
    for (const auto& [known, values] : figures_) {
        if (known == name) return values;
    }
    return none;
}

void Figures::append_to(Json& row) const {
    for (const auto& [name, values] : figures_) row[name] = Spread::of(values).json();
}

void print_report(const Json& report, bool as_json) {
    if (as_json) {
        fmt::print("{}\n", report.dump(2));
        return;
    }
    Cells once;
    flatten(report, "", once);
    std::string text;
    for (const auto& [name, value] : once) text += fmt::format("{} {}; ", name, value);
    text.resize(text.size() - 2);
    text = cli::wrapped(text, 100) + "\n";
    append_tables(report, "", text);
    fmt::print("{}", text);
}

}  // namespace bench
