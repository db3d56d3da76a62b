#pragma once
// A Python object as a column of a draft: any buffer, any list of numbers, text, bytes.

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nb.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::python {

// Functions of rollring/_arrays.py: as_buffer(object, column, dtype) -> (buffer, dtype name), for
// tensors and the like; as_json(object, column) -> str; as_images(list) -> str; as_versions(object)
// -> array of i64, flat or of pairs.
void set_helpers(nb::object as_buffer, nb::object as_json, nb::object as_images,
                 nb::object as_versions);

// A shortened value for an error.
std::string shown(nb::handle value);

// Holds the memory to which the columns of one draft point. Requires the GIL.
class ColumnInput {
  public:
    ColumnInput() = default;
    ColumnInput(const ColumnInput&) = delete;
    ColumnInput& operator=(const ColumnInput&) = delete;
    ~ColumnInput();

    // Raises TypeError or ValueError, naming the column, if the object cannot be one.
    void add(Draft& draft, const Schema& schema, std::uint16_t column, nb::handle object);
    // For policy_version: runs, or a number per token, which becomes runs. Returns the length of
    // the latter.
    std::optional<std::uint32_t> add_versions(Draft& draft, const Schema& schema,
                                              nb::handle object);

  private:
    void add_buffer(Draft& draft, const Column& declared, std::uint16_t column, Py_buffer& buffer,
                    DType dtype);
    void add_numbers(Draft& draft, const Column& declared, std::uint16_t column, nb::handle list);
    void add_text(Draft& draft, std::uint16_t column, std::string_view text);
    std::string_view utf8_of(nb::handle text, bool as_json);

    std::deque<Py_buffer> buffers_;
    std::deque<std::vector<std::byte>> converted_;
    std::deque<nb::object> texts_;
};

}  // namespace rollring::python
