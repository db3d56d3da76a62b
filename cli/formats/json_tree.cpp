#include "cli/formats/json_tree.hpp"

#include <cmath>
#include <stdexcept>

#include "cli/formats/json_text.hpp"
#include "cli/formats/json_value.hpp"

namespace rollring::cli {
namespace {

Json tree_of(JsonValue value) {
    if (value.is_object()) {
        Json object = Json::object();
        for (const JsonMember& member : value.members()) object[member.key] = tree_of(member.value);
        return object;
    }
    if (value.is_array()) {
        Json list = Json::array();
        for (const JsonValue element : value.elements()) list.push_back(tree_of(element));
        return list;
    }
    if (value.is_string()) return value.string();
    if (value.is_boolean()) return value.boolean();
    if (value.is_null()) return nullptr;
    if (value.is_integer()) {
        if (const auto number = value.number<std::uint64_t>()) return *number;
        if (const auto number = value.number<std::int64_t>()) return *number;
    }
    return value.number<double>().value_or(0);
}

}  // namespace

Json::Json(std::initializer_list<Member> members) : kind_(Kind::object), members_(members) {}

Json Json::array() {
    Json list;
    list.kind_ = Kind::list;
    return list;
}

Json Json::object() {
    Json object;
    object.kind_ = Kind::object;
    return object;
}

const Json* Json::find(std::string_view key) const {
    for (const Member& member : members_) {
        if (member.key == key) return &member.value;
    }
    return nullptr;
}

Json& Json::operator[](std::string_view key) {
    if (kind_ == Kind::null) kind_ = Kind::object;
    for (Member& member : members_) {
        if (member.key == key) return member.value;
    }
    return members_.emplace_back(std::string(key), Json()).value;
}

const Json& Json::operator[](std::string_view key) const {
    static const Json none{};
    const Json* found = find(key);
    return found == nullptr ? none : *found;
}

Json Json::value(std::string_view key, Json otherwise) const {
    const Json* found = find(key);
    if (found == nullptr) return otherwise;
    return *found;
}

std::size_t Json::size() const {
    return kind_ == Kind::object ? members_.size() : list_.size();
}

const std::string& Json::text() const {
    if (kind_ != Kind::text) throw std::runtime_error("a report has " + dump() + " for a text");
    return text_;
}

double Json::number() const {
    if (kind_ == Kind::real) return real_;
    if (kind_ == Kind::negative) return static_cast<double>(signed_);
    return static_cast<double>(whole());
}

std::uint64_t Json::whole() const {
    if (kind_ == Kind::real) return static_cast<std::uint64_t>(real_);
    if (kind_ == Kind::integer || kind_ == Kind::negative) return unsigned_;
    throw std::runtime_error("a report has " + dump() + " for a number");
}

bool Json::equals(const Json& other) const {
    if (is_number() && other.is_number()) {
        const bool real = kind_ == Kind::real || other.kind_ == Kind::real;
        if (real) return number() == other.number();
        return kind_ == other.kind_ && unsigned_ == other.unsigned_;
    }
    if (kind_ != other.kind_) return false;
    if (members_.size() != other.members_.size()) return false;
    for (auto mine = members_.begin(), theirs = other.members_.begin(); mine != members_.end();
         ++mine, ++theirs) {
        if (mine->key != theirs->key || !mine->value.equals(theirs->value)) return false;
    }
    return unsigned_ == other.unsigned_ && text_ == other.text_ && list_ == other.list_;
}

std::string Json::dump() const {
    std::string out;
    append(out);
    return out;
}

void Json::append(std::string& out) const {
    switch (kind_) {
        case Kind::null:
            out += "null";
            break;
        case Kind::boolean:
            out += unsigned_ != 0 ? "true" : "false";
            break;
        case Kind::integer:
            append_number(out, unsigned_);
            break;
        case Kind::negative:
            append_number(out, signed_);
            break;
        case Kind::real:
            if (std::isfinite(real_)) {
                append_number(out, real_, Integral::with_point);
            } else {
                out += "null";
            }
            break;
        case Kind::text:
            append_string(out, text_);
            break;
        case Kind::list: {
            char before = '[';
            for (const Json& value : list_) {
                out += before;
                value.append(out);
                before = ',';
            }
            out += list_.empty() ? "[]" : "]";
            break;
        }
        case Kind::object: {
            char before = '{';
            for (const Member& member : members_) {
                out += before;
                append_string(out, member.key);
                out += ':';
                member.value.append(out);
                before = ',';
            }
            out += members_.empty() ? "{}" : "}";
            break;
        }
    }
}

Json parse_report(std::string_view text) {
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    try {
        return tree_of(parse_json(text));
    } catch (const BadRecord&) {
        return nullptr;
    }
}

}  // namespace rollring::cli
