#include "given.hpp"

#include <optional>
#include <string>
#include <unordered_map>

#include "errors.hpp"

namespace rollring::python {
namespace {

using SetField = void (*)(Meta&, nb::handle);

const std::unordered_map<std::string_view, SetField>& fields() {
    static const std::unordered_map<std::string_view, SetField> known{
        {"visit", [](Meta& m, nb::handle v) { m.visit = number<std::uint64_t>(v, "visit"); }},
        {"repetition_id",
         [](Meta& m, nb::handle v) {
             m.repetition_id = number<std::uint32_t>(v, "repetition_id");
         }},
        {"group_size",
         [](Meta& m, nb::handle v) { m.group_size = number<std::uint32_t>(v, "group_size"); }},
        {"subsequence_index",
         [](Meta& m, nb::handle v) {
             m.subsequence_index = number<std::uint16_t>(v, "subsequence_index");
         }},
        {"last_subsequence",
         [](Meta& m, nb::handle v) { m.last_subsequence = number<bool>(v, "last_subsequence"); }},
        {"attempt", [](Meta& m, nb::handle v) { m.attempt = number<std::uint32_t>(v, "attempt"); }},
        {"source_id",
         [](Meta& m, nb::handle v) { m.source_id = number<std::int64_t>(v, "source_id"); }},
        {"status",
         [](Meta& m, nb::handle v) {
             const auto text = number<std::string>(v, "status");
             const auto status = parse_status(text);
             if (!status) {
                 raise("bad_record", "status: '" + text +
                                         "' is not a status; use completed, truncated, aborted, "
                                         "failed, timed_out or filtered");
             }
             m.status = *status;
         }},
        {"n_prompt",
         [](Meta& m, nb::handle v) { m.n_prompt = number<std::uint32_t>(v, "n_prompt"); }},
        {"policy_version_min",
         [](Meta& m, nb::handle v) {
             m.policy_version_min = number<std::int64_t>(v, "policy_version_min");
         }},
        {"policy_version_max",
         [](Meta& m, nb::handle v) {
             m.policy_version_max = number<std::int64_t>(v, "policy_version_max");
         }},
        {"reward", [](Meta& m, nb::handle v) { m.reward = number<double>(v, "reward"); }},
        {"created_ns",
         [](Meta& m, nb::handle v) { m.created_ns = number<std::int64_t>(v, "created_ns"); }},
        {"finished_ns",
         [](Meta& m, nb::handle v) { m.finished_ns = number<std::int64_t>(v, "finished_ns"); }},
        {"origin", [](Meta& m, nb::handle v) { m.origin = number<std::uint16_t>(v, "origin"); }},
    };
    return known;
}

[[noreturn]] void raise_unknown(const Schema& schema, std::string_view field) {
    nb::list known;
    for (const auto& [name, set] : fields()) known.append(nb::str(name.data(), name.size()));
    known.append("policy_version");
    known.append("timeout");
    for (const Column& column : schema.columns()) known.append(column.name);
    const std::string meant = did_you_mean(field, known);
    raise("bad_record", "there is no field and no column '" + std::string(field) + "'" +
                            (meant.empty() ? ": declare the column when the ring is created"
                                           : meant + " (or declare such a column when the ring "
                                                     "is created)"));
}

}  // namespace

std::string_view text_of(nb::handle name) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &bytes);
    if (text != nullptr) return {text, static_cast<std::size_t>(bytes)};
    PyErr_Clear();
    raise("bad_record", "the name of a field is text, not " + shown(name));
}

Given::Given(const Schema& schema, nb::handle instance_id, nb::dict given) {
    if (!PyUnicode_Check(instance_id.ptr()) && !PyBytes_Check(instance_id.ptr()))
        raise("bad_record", "instance_id: " + shown(instance_id) + " is not text: use str()");
    input.add(draft, schema, static_cast<std::uint16_t>(Std::instance_id), instance_id);
    for (const auto& [key, value] : given) {
        if (value.is_none()) continue;
        const std::string_view field = text_of(key);
        if (const auto known = fields().find(field); known != fields().end()) {
            known->second(draft.meta, value);
        } else if (field == "policy_version" && PySequence_Check(value.ptr()) != 0) {
            versions_of_tokens_ = input.add_versions(draft, schema, value);
        } else if (field == "policy_version") {
            draft.meta.policy_version_min = draft.meta.policy_version_max =
                number<std::int64_t>(value, "policy_version");
        } else if (const auto column = schema.find(field)) {
            input.add(draft, schema, *column, value);
        } else {
            raise_unknown(schema, field);
        }
    }
}

void Given::check_versions() const {
    if (versions_of_tokens_.value_or(draft.n_tokens()) == draft.n_tokens()) return;
    raise("bad_record", "policy_version has " + std::to_string(*versions_of_tokens_) +
                            " numbers, but the record has " + std::to_string(draft.n_tokens()) +
                            " tokens: give one per token, or runs [[start, version], ...]");
}

RolloutOutcome outcome_of(nb::dict given) {
    Meta meta;
    RolloutOutcome outcome;
    for (const auto& [key, value] : given) {
        const std::string_view field = text_of(key);
        const auto set = [&](auto& to, const auto& from) {
            // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the dict's iterator sets `value`
            fields().find(field)->second(meta, value);
            to = from;
        };
        if (field == "reward") {
            set(outcome.reward, meta.reward);
        } else if (field == "status") {
            set(outcome.status, meta.status);
        } else if (field == "n_prompt") {
            set(outcome.n_prompt, meta.n_prompt);
        } else if (field == "policy_version_min") {
            set(outcome.policy_version_min, meta.policy_version_min);
        } else if (field == "policy_version_max") {
            set(outcome.policy_version_max, meta.policy_version_max);
        } else if (field == "finished_ns") {
            set(outcome.finished_ns, meta.finished_ns);
        } else {
            raise("bad_record", "'" + std::string(field) + "' cannot be set once room is reserved");
        }
    }
    return outcome;
}

void Given::add_holes(const Schema& schema, nb::dict columns, std::uint32_t tokens) {
    for (const auto& [key, value] : columns) {
        const std::string_view name_of = text_of(key);
        const auto column = schema.find(name_of);
        if (!column) raise("bad_record", "there is no column '" + std::string(name_of) + "'");
        const Column& declared = schema.columns()[*column];
        DraftColumn hole{.column = *column,
                         .dtype = declared.dtype,
                         .shape = {tokens, 0, 0, 0},
                         .dims = 1,
                         .data = nullptr};
        for (const nb::handle length : value) {
            if (hole.dims == 4) raise("bad_record", "a column has 3 inner dims at most");
            hole.shape[hole.dims++] = number<std::uint32_t>(length, declared.name.c_str());
        }
        if (declared.per == Per::record) {  // a column per record may have no rows
            if (hole.dims == 1)
                raise("bad_record", "say the shape of column '" + declared.name + "'");
            for (std::size_t i = 1; i < hole.dims; i++) hole.shape[i - 1] = hole.shape[i];
            hole.dims--;
        }
        draft.add(hole);
    }
}

}  // namespace rollring::python
