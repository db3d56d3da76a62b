// Any text as a line of either format, and any text in the JSON columns of a record: read or
// refused with a reason; and our own output is JSON, which reads back as the same line.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/formats/rollring_json.hpp"
#include "integrations/atropos/atropos_json.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

void require(bool kept) {
    if (!kept) std::abort();
}

const Schema& schema() {
    static const Schema made = *Schema::standard_with({
        {.name = "f", .dtype = dtype_f32},
        {.name = "g", .dtype = {0, 8}, .dims = {0, 2}},
        {.name = "b", .dtype = {4, 16}, .per = Per::record},
        {.name = "i", .dtype = dtype_u16, .per = Per::record, .accepts = Accepts::any_integer},
    });
    return made;
}

struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};

// Appends the text that `write` makes of the record, as it comes out of a ring. False if a ring
// refuses it.
template <class Write>
bool through_ring(const ParsedRecord& record, const Write& write) {
    Draft draft;
    record.fill(draft);
    const Encoder encoder(draft, schema(), Checksum::none);
    if (!encoder.problem().empty()) return false;
    const std::unique_ptr<std::byte[], Free> memory(
        static_cast<std::byte*>(::operator new[](encoder.bytes(), std::align_val_t{64})));
    const std::span to(memory.get(), encoder.bytes());
    encoder.write(to, 0, -1);
    TrajectoryView view;
    require(view.parse(to, schema()).empty());
    write(view);
    return true;
}

// Of a line of ours, the line; "" if it is refused.
std::string rollring_line(std::string_view line) {
    ParsedRecord record;
    std::string out;
    try {
        parse_rollring(parse_json(line), schema(), record);
    } catch (const BadRecord& error) {
        require(*error.what() != '\0');
        return {};
    }
    through_ring(record, [&](const TrajectoryView& view) {
        require(append_rollring_line(out, view, schema()).empty());
    });
    return out;
}

std::string atropos_lines(std::string_view line) {
    AtroposLine parsed("r");
    AtroposGroups groups;
    std::string out;
    try {
        parsed.parse(parse_json(line), schema(), 1);
    } catch (const BadRecord& error) {
        require(*error.what() != '\0');
        return {};
    }
    for (const ParsedRecord& record : parsed.members()) {
        through_ring(record, [&](const TrajectoryView& view) {
            require(groups.add(view, schema(), out).empty());
        });
    }
    groups.finish(out);
    return out;
}

// Half of a surrogate pair is JSON by RFC 8259; nlohmann's reader refuses it.
bool may_have_half_pairs(std::string_view text) {
    return text.contains("\\ud") || text.contains("\\uD");
}

void require_json(std::string_view text) {
    if (may_have_half_pairs(text)) {
        parse_json(text);
    } else {
        require(nlohmann::json::accept(text));
    }
}

// Each line is JSON for any reader, and comes out of `again` as it is.
template <class Again>
void check_lines(std::string_view lines, const Again& again) {
    while (!lines.empty()) {
        const auto end = lines.find('\n') + 1;
        require(end != 0);
        const std::string line(lines.substr(0, end));
        require_json(line);
        require(again(line) == line);
        lines.remove_prefix(end);
    }
}

// We take the same texts as others, up to our depth, and three literals more.
void compare(std::string_view text) {
    bool taken = true;
    std::string compact;
    try {
        append_compact(compact, parse_json(text));
    } catch (const BadRecord& error) {
        taken = false;
        if (std::string_view(error.what()).find("nested deeper") != std::string_view::npos) return;
    }
    if (taken) {
        require(compact.find_first_of("\n\t\r") == std::string::npos);
        std::string twice;
        append_compact(twice, parse_json(compact));
        require(twice == compact);
    }
    // nlohmann takes a byte order mark, ends at a zero byte, and refuses numbers that are too great
    // for a double.
    const bool literal = text.find("NaN") != std::string_view::npos ||
                         text.find("Infinity") != std::string_view::npos;
    if (literal || text.starts_with("\xef") || text.contains('\0') ||
        text.find_first_of("eE") != std::string_view::npos || may_have_half_pairs(text)) {
        return;
    }
    if (text.size() < 300) require(nlohmann::json::accept(text) == taken);
}

// Text that a record carries, by any writer.
void check_text(std::string_view text) {
    ParsedRecord record;
    record.set_text(Std::instance_id, "a");
    record.make<std::int32_t>(Std::token_ids, 1)[0] = 1;
    for (const Std column : {Std::extra, Std::messages, Std::overrides, Std::images}) {
        record.set_text(column, text);
    }
    for (const Origin origin : {native, rollring_json, atropos, atropos_item}) {
        record.meta.origin = origin;
        record.meta.group_size = 1;
        through_ring(record, [&](const TrajectoryView& view) {
            std::string out;
            AtroposGroups groups;
            if (origin == atropos || origin == atropos_item) {
                static_cast<void>(groups.add(view, schema(), out));
            } else {
                static_cast<void>(append_rollring_line(out, view, schema()));
            }
            require_json(out);
            parse_json(out);
        });
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t count) {
    if (count == 0) return 0;
    const std::string text(reinterpret_cast<const char*>(input) + 1, count - 1);
    switch (input[0] % 4) {
        case 0:
            check_lines(rollring_line(text), rollring_line);
            break;
        case 1:
            check_lines(atropos_lines(text), atropos_lines);
            break;
        case 2:
            compare(text);
            break;
        default:
            check_text(text);
    }
    return 0;
}
