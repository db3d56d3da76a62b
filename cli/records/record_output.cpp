#include "cli/records/record_output.hpp"

#include <fmt/core.h>

#include <cerrno>

#include "cli/formats/rollring_json.hpp"
#include "cli/terminal/output.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t problems_told = 20;

}  // namespace

Result<LineOutput> LineOutput::open(const std::string& path) {
    LineOutput output;
    output.path_ = path == "-" ? "stdout" : path;
    output.file_.reset(path == "-" ? stdout : std::fopen(path.c_str(), "wbe"));
    if (output.file_) return output;
    const int number = errno;
    return failed(Errc::system, number,
                  fmt::format("cannot write {}: choose another --output", path));
}

void RecordOutput::add(const TrajectoryView& record, const Schema& schema) {
    const std::uint16_t origin = record.meta().origin;
    const std::string problem = origin == atropos || origin == atropos_item
                                    ? groups_.add(record, schema, lines_.text())
                                    : append_rollring_line(lines_.text(), record, schema);
    if (problem.empty()) return;
    if (++problems_ <= problems_told) note("record " + problem);
    if (problems_ == problems_told) note("further such records are not reported");
}

bool LineOutput::flush() {
    if (problem_) return false;
    if (text_.empty()) return true;
    const int number = write_all(::fileno(file_.get()), text_);
    if (number != 0) {
        if (file_.get() == stdout) remember_failed_write(number);
        problem_ = Error{Errc::system, number,
                         fmt::format("cannot write {}; unwritten records stay in the ring", path_)};
    }
    text_.clear();
    return number == 0;
}

}  // namespace rollring::cli
