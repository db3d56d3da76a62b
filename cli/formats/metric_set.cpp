#include "cli/formats/metric_set.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cli/formats/json_text.hpp"

namespace rollring::cli {
namespace {

std::string_view name(MetricType type) {
    return type == MetricType::counter ? "counter" : "gauge";
}

// Escapes a label's value, or a help line, in which quotation marks stay.
void append_escaped(std::string& out, std::string_view text, bool quotes) {
    while (!text.empty()) {
        const char c = text.front();
        const std::size_t bytes = utf8_bytes(text);
        if (bytes == 0) {
            out += "\xEF\xBF\xBD";
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\\' || (quotes && c == '"')) {
            out += '\\';
            out += c;
        } else {
            out += text.substr(0, bytes);
        }
        text.remove_prefix(std::max<std::size_t>(bytes, 1));
    }
}

void append_labels(std::string& out, const MetricLabels& labels) {
    char before = '{';
    for (const auto& [key, value] : labels) {
        out += std::exchange(before, ',');
        out += key;
        out += "=\"";
        append_escaped(out, value, true);
        out += '"';
    }
    if (!labels.empty()) out += '}';
}

void append_value(std::string& out, const MetricValue& value) {
    if (const auto* whole = std::get_if<std::uint64_t>(&value)) {
        append_number(out, *whole);
        return;
    }
    const double real = std::get<double>(value);
    if (std::isnan(real)) {
        out += "NaN";
    } else if (std::isinf(real)) {
        out += real > 0 ? "+Inf" : "-Inf";
    } else {
        append_number(out, real, Integral::plain);
    }
}

}  // namespace

void MetricSet::declare(const std::string& name, MetricType type, const std::string& help) {
    if (index_.contains(name)) throw std::logic_error("two families are called " + name);
    index_.emplace(name, families_.size());
    families_.push_back({.name = name, .type = type, .help = help});
}

void MetricSet::add(const std::string& name, const MetricLabels& labels, MetricValue value) {
    Family& family = families_[index_.at(name)];
    if (family.seen.insert(labels).second) family.samples.push_back({labels, value});
}

std::string MetricSet::text() const {
    std::string out;
    for (const Family& family : families_) {
        out += "# HELP " + family.name + ' ';
        append_escaped(out, family.help, false);
        out += "\n# TYPE " + family.name + ' ';
        out += cli::name(family.type);
        out += '\n';
        for (const Sample& sample : family.samples) {
            out += family.name;
            append_labels(out, sample.labels);
            out += ' ';
            append_value(out, sample.value);
            out += '\n';
        }
    }
    return out;
}

Json MetricSet::json() const {
    Json list = Json::array();
    for (const Family& family : families_) {
        Json samples = Json::array();
        for (const Sample& sample : family.samples) {
            Json labels = Json::object();
            for (const auto& [key, value] : sample.labels) labels[key] = value;
            Json one{{"labels", std::move(labels)}};
            one["value"] = std::visit([](auto number) { return Json(number); }, sample.value);
            samples.push_back(std::move(one));
        }
        list.push_back({{"name", family.name},
                        {"type", cli::name(family.type)},
                        {"help", family.help},
                        {"samples", std::move(samples)}});
    }
    return list;
}

}  // namespace rollring::cli
