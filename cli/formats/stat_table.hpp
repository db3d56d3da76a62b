#pragma once
// Tables of stats for a terminal: each column is one entry with its layout and its content.

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/formats/stat_report.hpp"
#include "cli/terminal/table.hpp"

namespace rollring::cli {

template <class Row>
struct StatColumn {
    Table::Column look;
    std::function<std::string(const Row&)> cell;

    StatColumn(Table::Column column, std::function<std::string(const Row&)> shown)
        : look(std::move(column)), cell(std::move(shown)) {}
    // One field of the row, in its unit.
    template <class T>
        requires std::is_object_v<T>
    StatColumn(Table::Column column, T Row::* field)
        : StatColumn(std::move(column), [field](const Row& row) { return cell_of(row, field); }) {}
};

template <class Row>
Table table_of(const std::vector<StatColumn<Row>>& columns, const std::vector<Row>& rows) {
    std::vector<Table::Column> looks;
    looks.reserve(columns.size());
    for (const StatColumn<Row>& column : columns) looks.push_back(column.look);
    Table table(std::move(looks));
    for (const Row& row : rows) {
        std::vector<std::string> cells;
        cells.reserve(columns.size());
        for (const StatColumn<Row>& column : columns) cells.push_back(column.cell(row));
        table.add(std::move(cells));
    }
    return table;
}

}  // namespace rollring::cli
