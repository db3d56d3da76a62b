#pragma once
// The file of `consume --output`: JSON lines; each record in the format in which it came.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "integrations/atropos/atropos_json.hpp"
#include "rollring/error.hpp"

namespace rollring::cli {

// Keeps lines until flush(), so that the caller knows which lines the system has.
class LineOutput {
  public:
    // "-" is standard output.
    static Result<LineOutput> open(const std::string& path);

    [[nodiscard]] std::string& text() { return text_; }  // to append to
    // Writes them to the system: afterwards the lines survive this process. False if the disk is
    // full.
    [[nodiscard]] bool flush();
    // The error of flush().
    [[nodiscard]] const std::optional<Error>& problem() const { return problem_; }

  private:
    struct CloseFile {
        void operator()(std::FILE* file) const {
            if (file != stdout) static_cast<void>(std::fclose(file));
        }
    };

    std::string path_;
    std::optional<Error> problem_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    std::string text_;
};

class RecordOutput {
  public:
    explicit RecordOutput(LineOutput lines) : lines_(std::move(lines)) {}

    void add(const TrajectoryView& record, const Schema& schema);
    // The bytes that wait for flush().
    [[nodiscard]] std::uint64_t waiting_bytes() { return lines_.text().size(); }
    [[nodiscard]] bool flush() { return lines_.flush(); }
    // Writes incomplete groups, too; returns their number.
    std::uint64_t finish() { return groups_.finish(lines_.text()); }
    [[nodiscard]] const std::optional<Error>& problem() const { return lines_.problem(); }
    [[nodiscard]] LineOutput& lines() { return lines_; }  // for lines of another kind

  private:
    LineOutput lines_;
    AtroposGroups groups_;
    std::uint64_t problems_ = 0;  // records with text that is not the JSON it should be
};

}  // namespace rollring::cli
